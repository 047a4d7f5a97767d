"""The first difference between two workstreams, as one line of the error for an id that another workstream has.

Rules
-----
- Equal meaning is no difference: another order of a dict, or of a list whose order has no meaning; another form of a
  duration (60, "1m"), of a time (in another time zone), or of the number of tries.
- The description of a workstream is not compared: it changes nothing that runs.
- Tasks are compared by name. Another order of the tasks is reported only if nothing else differs.
- For values in `args`, `env` and commands only the place is reported: they may be secret, and errors go into logs and
  over HTTP. For all other values the error shows the old and the new one, shortened if they are long.
"""

from __future__ import annotations

from functools import cache
from typing import Any, cast, get_args

import msgspec

from ...actors.spec.limits import attempts
from ...actors.spec.model import Retry, Task, Workstream
from ...actors.spec.schema import Path, clipped, short, where
from ...actors.times import Duration, is_named, moment, seconds

_UNTOLD = frozenset({"args", "env", "command"})  # fields whose values are not reported
_UNORDERED = frozenset(
    {"after", "capabilities", "checkpoint_on", "depends_on", "expected_exit_codes", "ignore", "secrets"}
)
_LONGEST_PLACE = 120  # characters
_TRIES = frozenset({"max_attempts", "max_retries"})  # two words for one number
_Pair = tuple[Path, Any, Any]  # the place of two values, the old value and the new one
_MISSING = object()  # in place of a value that the other dict has no key for


def difference(before: Workstream, now: Workstream) -> str | None:
    """Return the first difference of `now`, the workstream here; None if both mean the same."""
    if before.name != now.name:
        return f"its name was {short(before.name)} and is {short(now.name)} now"
    old, new = ({task.name: task for task in one.tasks} for one in (before, now))
    changed = [
        f"{verb} {_named(names)}"
        for verb, names in (
            ("adds", [name for name in new if name not in old]),
            ("lacks", [name for name in old if name not in new]),
        )
        if names
    ]
    if changed:
        return f"this workstream {' and '.join(changed)}"
    for name, task in new.items():
        if (found := _first(old[name], task)) is not None:
            return f"task {short(name)}: {found}"
    if (
        found := _first(*(msgspec.structs.replace(one, tasks=[], description=None) for one in (before, now)))
    ) is not None:
        return found
    moved = next(((was, name) for was, name in zip(old, new, strict=True) if was != name), None)
    return None if moved is None else f"task {short(moved[1])} is now in the place of task {short(moved[0])}"


def _named(names: list[str]) -> str:
    more = "" if len(names) == 1 else f" (and {len(names) - 1} more)"
    return f"the task {short(names[0])}{more}"


def _first(before: Task | Workstream, now: Task | Workstream) -> str | None:
    """Return the first value that differs, depth first. Without recursion, since `args` may have any depth."""
    left: list[_Pair] = [((), before, now)]
    while left:
        at, old, new = left.pop()
        if type(old) is not type(new):
            return _told(at, old, new)
        if isinstance(old, msgspec.Struct):
            inside = _fields(at, old, new)
        elif isinstance(old, dict):
            inside = _entries(at, cast("dict[str, object]", old), cast("dict[str, object]", new))
        elif isinstance(old, list):
            was, here = cast("list[object]", old), cast("list[object]", new)
            if len(was) != len(here):
                return _told(at, was, here)
            inside = [((*at, index), *pair) for index, pair in enumerate(zip(was, here, strict=True))]
        elif old != new:
            return _told(at, old, new)
        else:
            continue
        left.extend(reversed(inside))
    return None


def _entries(at: Path, old: dict[str, object], new: dict[str, object]) -> list[_Pair]:
    return [((*at, key), old.get(key, _MISSING), new.get(key, _MISSING)) for key in {**old, **new}]


def _fields(at: Path, old: msgspec.Struct, new: msgspec.Struct) -> list[_Pair]:
    durations = _durations(type(old))
    same = _TRIES if isinstance(old, Retry) and attempts(old) == attempts(cast("Retry", new)) else frozenset[str]()
    pairs = [(name, getattr(old, name), getattr(new, name)) for name in old.__struct_fields__ if name not in same]
    return [
        ((*at, name), was, here)
        for name, was, here in pairs
        if not (name in durations and _as_long(was, here)) and not (name in _UNORDERED and _same_set(was, here))
    ]


@cache
def _durations(kind: type[msgspec.Struct]) -> frozenset[str]:
    """The names of the fields of a specification that are durations."""
    wanted = set(get_args(Duration))
    return frozenset(field.name for field in msgspec.structs.fields(kind) if wanted <= set(get_args(field.type)))


def _as_long(was: Duration | None, here: Duration | None) -> bool:
    """Whether two durations are equal, or two points in time, which a wait may have instead."""
    try:
        if was is None or here is None or is_named(was) != is_named(here):
            return False
        return moment(was, 0.0) == moment(here, 0.0) if is_named(was) else seconds(was) == seconds(here)
    except (TypeError, ValueError):
        return False


def _same_set(was: list[Any] | None, here: list[Any] | None) -> bool:
    """Whether two lists of texts or numbers hold the same items, in any order."""
    return was is not None and here is not None and sorted(was) == sorted(here)


def _told(at: Path, old: object, new: object) -> str:
    place = clipped(where(at), _LONGEST_PLACE)
    if old is _MISSING:
        return f"{place} is new"
    if new is _MISSING:
        return f"{place} is missing"
    if _UNTOLD.intersection(at) or not (_is_plain(old) and _is_plain(new)):
        return f"{place} is different"
    return f"{place} was {_value(old)} and is {_value(new)} now"


def _is_plain(value: object) -> bool:
    """Whether an error can show this value: a text, a number, None, or a list of texts and whole numbers."""
    if isinstance(value, list):
        return all(isinstance(one, str | int) for one in cast("list[object]", value))
    return value is None or isinstance(value, str | int | float)


def _value(value: object) -> str:
    return "not set" if value is None else short(value)
