"""Compares the workstream of a child job in a replay with the one that the history has of it.

Rules
- The comparison is that of production (`runtime/jobs/same_workstream.py`), as far as it can be made without the
  application: registered names of functions are not known here, so such functions are not compared.
- A function of the program itself (`__main__`) is known by its name alone: the program may be in another place now.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from ...actors.spec.limits import inheriting
from ...actors.spec.model import Workstream
from ..functions.import_paths import NoPath, parts_of, path_of
from ..functions.main_program import MAIN
from ..functions.registry import without_functions
from ..jobs.difference import difference

if TYPE_CHECKING:
    from ..flows.history import ChildHistory, FlowHistory


def differs(history: FlowHistory, known: ChildHistory, given: Workstream) -> str | None:
    """The first difference of the workstream that the body submits now, in words; None if there is none, or if the
    history does not have the workstream.
    """
    if known.workstream is None:
        return None
    now = inheriting(given, Workstream("", defaults=history.defaults, tools=history.tools))
    (was, before), (here, called) = without_functions(known.workstream), without_functions(now)
    try:
        here = msgspec.json.decode(msgspec.json.encode(replace(here, folder=was.folder)), type=Workstream)
    except (TypeError, ValueError, msgspec.MsgspecError):
        return None  # for example a lifecycle of the application, of which the journal has only the name
    if (found := difference(was, here)) is not None:
        return found
    for place, func in called.items():
        old, new = before.get(place), _path(func)
        if isinstance(old, str) and new is not None and ":" in old and not _same(old, new):
            return f"its function {old!r} is {new!r} here"
    return None


def _path(func: object) -> str | None:
    """The import path of a function; None if it has none, or is known by a name."""
    if isinstance(func, str):
        return func if ":" in func else None
    try:
        return path_of(func)  # type: ignore[arg-type]
    except NoPath:
        return None


def _same(old: str, new: str) -> bool:
    (module, _, names), (other, _, also) = parts_of(old), parts_of(new)
    return names == also and (module == other or MAIN in {module, other})
