"""Compares a workstream with the one that was submitted under the same id, and finds the difference.

Rules
-----
- The comparison is by meaning: a function is the same under any of its names or paths, a duration in any notation, and
  a dict in any order.
- If only the places of functions differ, the error says so, and what to do: a user who has moved a script does not
  think that the workstream has changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from ...actors.records.entities import JobRecord
from ...actors.spec.model import Workstream
from ..functions.import_paths import parts_of
from ..functions.main_program import MAIN, NOT_OF_A_FILE
from ..functions.registry import placed

if TYPE_CHECKING:
    from ..functions.registry import Bodies, CanonicalForm
    from ..handles.services import Services


class WorkstreamComparison(msgspec.Struct, frozen=True):
    """The result of a comparison.

    moved: the text about a moved function, if nothing else differs. differs: the first difference; None if the journal
    no longer has the old workstream.
    """

    same: bool
    moved: str | None = None
    differs: str | None = None

    @property
    def told(self) -> str:
        """The difference, as a text that follows "another workstream"."""
        return "" if self.differs is None else f": {self.differs}"


SAME = WorkstreamComparison(same=True)


async def compare(
    services: Services,
    record: JobRecord,
    spec: Workstream,
    fingerprint: str,
    plain: Callable[[bytes], bytes] = bytes,
) -> WorkstreamComparison:
    """Compare a workstream with the one that a job was submitted with.

    plain: removes from the JSON the parts without meaning for the comparison.
    """
    if record.fingerprint == fingerprint:
        return SAME
    return compared(services.bodies, await services.read(services.journal.reader.spec, record.stream), spec, plain)


def compared(
    bodies: Bodies, encoded: bytes | None, spec: Workstream, plain: Callable[[bytes], bytes] = bytes
) -> WorkstreamComparison:
    """Compare a workstream with an encoded one from a journal."""
    if encoded is None:
        return WorkstreamComparison(same=False)
    before, now = (bodies.meaning(_read(one)) for one in (encoded, msgspec.json.encode(spec)))
    if plain(before.whole) == plain(now.whole):
        return SAME
    was, here = (msgspec.json.decode(plain(one.whole), type=Workstream) for one in (before, now))
    from .difference import difference  # noqa: PLC0415 - only for another workstream under a known id

    if (differs := difference(was, here)) is None:
        return SAME
    moved = _moved(before, now) if plain(before.bare) == plain(now.bare) else None
    return WorkstreamComparison(same=False, moved=moved, differs=differs)


def _read(encoded: bytes) -> Workstream:
    return placed(msgspec.json.decode(encoded, type=Workstream))


def _moved(before: CanonicalForm, now: CanonicalForm) -> str | None:
    """The text about the first moved function: its old place, its new place, and what to do."""
    pairs = zip(before.called, now.called, strict=True)
    moved = {was: here for (was, name), (here, called) in pairs if name != called}
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
