"""Filters of events: what `Runtime.events()` and `JobHandle.events()` accept.

| filter | selects events |
| --- | --- |
| job | of this job (its id) |
| workstream | of this workstream (its id) |
| task | of this task (its name or its id), or of an entity that belongs to it |
| entity | of the entity with this id |
| kind | of this kind of entity: job, workstream, task, approval, worker, breaker, machine, actor; or "runtime": none |
| event | with this name: a transition's trigger, or a notice's event |
| severity | of this severity, or a higher one |
| from_state, to_state | that leave or enter this state (so no notices) |

Rules
-----
- A filter takes one value or several (a list, tuple or set). Of several values, one must match; several severities mean
  exactly those.
- An event must match all given filters. A value that can never match is refused where that is known: kinds and
  severities are closed sets, and an empty collection matches nothing.
- Whether a state can ever be met is known of approvals, which have one machine, and of a job that names no lifecycle.
  Elsewhere a specification that comes later may bring a lifecycle that has the state: then there is a warning.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import TypedDict, cast

from ...actors.messages.notices import SEVERITIES, Notice
from ...actors.records.entities import MachineRecord
from ...actors.records.transition import Transitioned
from ...actors.user_code import called, is_a, plain, shown
from ...machines.builtin.table import MACHINES
from ...machines.keywords import did_you_mean

UNJOURNALED = ("actor", "runtime")
"""Kinds that have notices, but no transitions."""
KINDS = (*MACHINES, MachineRecord.kind, *UNJOURNALED)
Event = Transitioned | Notice
"""The events that subscribers receive."""
EventFilter = Callable[[Event], bool]
Words = str | Collection[str]
_CLOSED: dict[str, list[str]] = {"approval": [*map(str, MACHINES["approval"].states)], "actor": [], "runtime": []}
"""The states of the kinds whose entities all run by one machine, or by none."""
MOST_WORDS = 10_000
"""The most values that one filter may have."""


class Filters(TypedDict, total=False):
    """The conditions that an event must meet to be delivered. See the module."""

    job: Words
    workstream: Words
    task: Words
    entity: Words
    kind: Words
    event: Words
    severity: Words
    from_state: Words
    to_state: Words


def everything(event: Event) -> bool:  # noqa: ARG001 - it looks at nothing
    """Select every event."""
    return True


def wanted_by(filters: Filters, *, notices: bool = True) -> EventFilter:
    """Make a function that returns whether an event matches all filters.

    Raises TypeError for an unknown filter, ValueError for a value that can never match.
    """
    kinds = given("kind", filters)
    if kinds and kinds <= _CLOSED.keys() and (problem := _unmet(filters, {one: _CLOSED[one] for one in sorted(kinds)})):
        raise ValueError(problem)
    tests = [_TESTS[name](_words(name, value)) for name, value in _checked(filters).items()]
    if not notices:
        tests.insert(0, lambda event: isinstance(event, Transitioned))
    if not tests:
        return everything
    if len(tests) == 1:
        return tests[0]
    return lambda event: all(test(event) for test in tests)


def unknown_state(filters: Filters, states: Callable[[str], Iterable[str]], kinds: Iterable[str] = ()) -> str | None:
    """Return the fault of a state that no wanted entity is known to have; None if there is none.

    states: the known states of entities of a kind. kinds: those that are wanted if the filters name none.
    """
    wanted = given("kind", filters) or frozenset(kinds)
    if not wanted or MachineRecord.kind in wanted:  # a machine of the application may have any state
        return None
    return _unmet(filters, {kind: states(kind) if kind in MACHINES else () for kind in sorted(wanted)})


def _unmet(filters: Filters, states: Mapping[str, Iterable[str]]) -> str | None:
    """Return the fault of a state, if entities of the wanted kinds have these states only."""
    kinds, every = " or ".join(states), list(dict.fromkeys(one for several in states.values() for one in several))
    for name in ("from_state", "to_state"):
        for one in sorted(given(name, filters) - {*every}):
            if not every:
                return f"an event of the kind {kinds} is a notice, which has no {name}"
            advice = did_you_mean(one, every) or f"there are: {', '.join(every)}"
            return f"{one!r:.60} is no state of the kind {kinds}; {advice}"
    return None


def given(name: str, filters: Filters) -> frozenset[str]:
    """The values of a filter; none if it is not given."""
    value = filters.get(name)
    return frozenset() if value is None else _words(name, value)


def _checked(filters: Filters) -> dict[str, object]:
    unknown = filters.keys() - _TESTS.keys()
    if unknown:
        raise TypeError(f"there is no filter {', '.join(sorted(unknown))}; there are: {', '.join(_TESTS)}")
    said: dict[str, object] = {name: value for name, value in filters.items() if value is not None}
    for name, closed in (("kind", KINDS), ("severity", SEVERITIES)):
        for one in sorted(given(name, filters) - {*closed}):
            raise ValueError(f"{one!r:.60} is no {name}; there are: {', '.join(closed)}")
    if isinstance(severity := said.get("severity"), str):
        said["severity"] = SEVERITIES[[*SEVERITIES].index(severity) :]  # type: ignore[arg-type]
    return said


def _words(name: str, value: object) -> frozenset[str]:
    if is_a(value, str):
        return frozenset({plain(value)})  # type: ignore[arg-type]
    if is_a(value, Collection):
        several = _several(cast("Collection[object]", value))
        if several is not None and not several:
            raise ValueError(f"the filter {name} is empty, so no event matches it; leave it out to get all events")
        if several is not None and all(type(one) is str for one in several):
            return frozenset(cast("list[str]", several))
    raise TypeError(f"the filter {name} takes a str or several, not {shown(value, 60)}")


def _several(values: Collection[object]) -> list[object] | None:
    """The values of an application's collection; None where it raises, or never ends."""
    try:
        given = called(list, islice(values, MOST_WORDS + 1))
    except Exception:
        return None
    return [plain(one) for one in given] if len(given) <= MOST_WORDS else None


def _job(words: frozenset[str]) -> EventFilter:
    return lambda event: event.job_id in words


def _workstream(words: frozenset[str]) -> EventFilter:
    # A notice has no field for its workstream: its entity's id begins with it (`workstream/task`).
    return lambda event: (event.entity_id or "").partition("/")[0] in words


def _task(words: frozenset[str]) -> EventFilter:
    def wanted(event: Event) -> bool:
        stream, _, inside = (event.entity_id or "").partition("/")
        name = inside.partition("/")[0]
        return bool(name) and (name in words or f"{stream}/{name}" in words)

    return wanted


def _entity(words: frozenset[str]) -> EventFilter:
    return lambda event: event.entity_id in words


def _kind(words: frozenset[str]) -> EventFilter:
    return lambda event: event.kind in words


def _event(words: frozenset[str]) -> EventFilter:
    return lambda event: event.event in words


def _severity(words: frozenset[str]) -> EventFilter:
    return lambda event: event.severity in words


def _from_state(words: frozenset[str]) -> EventFilter:
    return lambda event: isinstance(event, Transitioned) and event.from_state in words


def _to_state(words: frozenset[str]) -> EventFilter:
    return lambda event: isinstance(event, Transitioned) and event.to_state in words


_TESTS: dict[str, Callable[[frozenset[str]], EventFilter]] = {
    "job": _job, "workstream": _workstream, "task": _task, "entity": _entity, "kind": _kind, "event": _event,
    "severity": _severity, "from_state": _from_state, "to_state": _to_state,
}  # fmt: skip
