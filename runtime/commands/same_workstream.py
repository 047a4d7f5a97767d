"""Whether a workstream is the one that an id was given to before; and if not, what differs.

Rules
-----
- What counts is what it means: a function is the same by whatever name or path it is found, a duration however it is
  written, and a dict in whatever order it is.
- Where nothing differs but where functions are, the error says so, and what to do: who has moved a script has changed
  nothing in their own eyes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from ...actors.records.entities import JobRecord
from ...actors.spec.model import Workstream
from ..functions.import_paths import parts_of
from ..functions.main_program import MAIN, NOT_OF_A_FILE
from ..functions.registry import placed
from .difference import difference

if TYPE_CHECKING:
    from ..functions.registry import Bodies, Meaning
    from ..services import RuntimeServices


class Compared(NamedTuple):
    """What came of it. moved: what to say of a function that is elsewhere now, where no more differs. differs: what
    differs first; None where the journal does not know any more.
    """

    same: bool
    moved: str | None = None
    differs: str | None = None

    @property
    def told(self) -> str:
        """What differs, as it is put behind "another workstream"."""
        return "" if self.differs is None else f": {self.differs}"


SAME = Compared(same=True)


async def compare(
    services: RuntimeServices,
    record: JobRecord,
    spec: Workstream,
    fingerprint: str,
    plain: Callable[[bytes], bytes] = bytes,
) -> Compared:
    """Hold a workstream against the one that a job was submitted with.

    plain: takes out of its JSON what tells nothing.
    """
    if record.fingerprint == fingerprint:
        return SAME
    return compared(services.bodies, await services.read(services.journal.reader.spec, record.stream), spec, plain)


def compared(
    bodies: Bodies, encoded: bytes | None, spec: Workstream, plain: Callable[[bytes], bytes] = bytes
) -> Compared:
    """Hold a workstream against what a journal has of one."""
    if encoded is None:
        return Compared(same=False)
    before, now = (bodies.meaning(_read(one)) for one in (encoded, msgspec.json.encode(spec)))
    if plain(before.whole) == plain(now.whole):
        return SAME
    was, here = (msgspec.json.decode(plain(one.whole), type=Workstream) for one in (before, now))
    if (differs := difference(was, here)) is None:
        return SAME
    moved = _moved(before, now) if plain(before.bare) == plain(now.bare) else None
    return Compared(same=False, moved=moved, differs=differs)


def _read(encoded: bytes) -> Workstream:
    return placed(msgspec.json.decode(encoded, type=Workstream))


def _moved(before: Meaning, now: Meaning) -> str | None:
    """Of the first function that is elsewhere: where it was, where it is, and what to do about it."""
    pairs = zip(before.called, now.called, strict=True)
    moved = {was: here for (was, known), (here, called) in pairs if known != called}
    if not moved:
        return None
    was, here = next(iter(moved.items()))
    more = "" if len(moved) == 1 else f" (and {len(moved) - 1} more)"
    module, where, names = parts_of(was)
    if was.startswith(NOT_OF_A_FILE):
        return (
            f"its function {names!r}{more} was of a program that was not read from a file (python -, python -c, a "
            "notebook): no other process has it. Put it in a module, or register it by a name: @runtime.task(name=...)"
        )
    alias = f"say that it is the same function: @runtime.task(aliases=[{was!r}])"
    if module == MAIN and where:
        return (
            f"its function {names!r}{more} was of the program {where}, and is {here!r} here. If that script was "
            f"moved, make a link where it was, or {alias}. What several programs are to run, put in a module"
        )
    return f"its function {was!r}{more} is {here!r} here. If it was moved or renamed, {alias}"
