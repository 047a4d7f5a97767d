"""The past of a simulation, and a test's expectations of it.

Rules
-----
- An entity is named as in the journal: "job", "job@1", "job@1/task", "worker#1"; "job/task" is the task in any run.
- An unknown name raises, with the most similar name. An entity that does not exist *yet* may be expected.
"""

from __future__ import annotations

import re
from typing import Any

from ...actors.messages.notices import Notice
from ...actors.records.transition import Transitioned
from ...actors.times import Duration
from ...machines import CREATE, Machine
from ...machines.builtin.table import MACHINES
from ...machines.lifecycles import LIFECYCLES
from ..journal.consistency import examine
from .arguments import advice, duration, text
from .time_control import TimeControl
from .trace import Trace

_RUN = re.compile(r"@\d+")


class History(TimeControl):
    """The part of `Simulation` that reads its past."""

    _expected: dict[str, int]  # the number of the last expected transition of each entity

    @property
    def transitions(self) -> list[Transitioned]:
        """All transitions that are durable, in order."""
        return list(self.world.journal.transitions())

    def path(self, entity: str) -> list[str]:
        """The durable states of an entity, in order: of "job", "job@1", "job@1/task", "worker#1"; "job/task" in its
        last run.

        Raises LookupError if nothing has that name.
        """
        rows = self._rows(text(entity, "an entity's name"))
        if not rows:
            raise LookupError(f"the journal has no entity {entity!r:.80}; {advice(entity, self._entities())}")
        return [row.to_state for row in rows if row.entity_id == rows[-1].entity_id]

    def until(self, entity: str, state: str, *, within: Duration | None = None) -> None:
        """Let time pass until an entity is durably in that state, or has passed through it.

        entity: its id, also of a workstream ("job@1"), an approval or a machine, or "job/task" for any run; the entity
        need not exist yet. Raises AssertionError if it never gets there, or not within that duration, ValueError if
        such an entity has no such state.
        """
        self.settle()
        rows = self._rows(text(entity, "an entity's name"))
        self._check_words(entity, rows, text(state, "a state"), None)

        def is_there() -> bool:
            rows = self._rows(entity)
            return bool(rows) and state in {rows[-1].to_state, rows[-1].phase}

        def is_its(row: Transitioned) -> bool:
            return entity in _names(row)

        self.come_to(
            state, name=entity, is_there=is_there, is_its=is_its, within=within, where=lambda: self._where(entity)
        )  # fmt: skip

    def _where(self, entity: str) -> str:
        """The present state of an entity, for failures; a suggestion if nothing has that name."""
        found = self.entity_states().of(entity, lambda row: entity in _names(row))
        return found or f"\n{entity} does not exist: nothing had that name; {advice(entity, self._entities())}"

    def expect_transition(
        self,
        entity: str,
        *,
        to: str | None = None,
        event: str | None = None,
        within: Duration = 0.0,
    ) -> Transitioned:
        """Let time pass until an entity durably takes that transition; returns it. Each counts once, in order.

        entity: its id, or "job/task" for any run. to, event: the state that it leads to, and its event; one of them is
        needed. within: 0 unless given: only events that are due now. Raises AssertionError if it does not come, with
        the transitions that came; ValueError for states and events that such an entity does not have.
        """
        if to is None and event is None:
            raise ValueError(f"name the expected transition of {entity!r:.80}: to=..., event=..., or both")
        duration(within, "within")
        self.settle()
        rows = self._rows(text(entity, "an entity's name"))
        self._check_words(entity, rows, to, event)
        found: list[Transitioned] = []

        def came() -> bool:
            for row in self.world.journal.transitions(after=self._expected.get(entity, 0)):
                fits = to in {None, row.to_state} and event in {None, row.event}
                if fits and entity in _names(row):
                    found.append(row)
                    return True
            return False

        wanted = " ".join(filter(None, [event, to and f"-> {to}"]))
        path = " -> ".join(row.to_state for row in rows) or "nowhere"
        self._pass_until(came, within, f"{entity} to take {wanted} (it went: {path})", lambda: self._where(entity))
        self._expected[entity] = found[0].seq
        return found[0]

    def _rows(self, entity: str) -> list[Transitioned]:
        return [row for row in self.world.journal.transitions() if entity in _names(row)]

    def _entities(self) -> list[str]:
        """The names of all entities, as tests write them: tasks without their runs."""
        rows = self.world.journal.transitions()
        return list(dict.fromkeys(_without_run(row.entity_id) if row.kind == "task" else row.entity_id for row in rows))

    def _check_words(self, entity: str, rows: list[Transitioned], to: str | None, event: str | None) -> None:
        kinds = [rows[0].kind] if rows else _kinds_of(entity)
        if not kinds or kinds[0] not in MACHINES:
            return  # the entity does not exist yet, or runs by the test's own machine
        machines = [MACHINES[kind] for kind in kinds]
        for word, what, names in (
            (to, "state", [str(one) for machine in machines for one in machine.states]),
            (event, "event", [one for machine in machines for one in _events(machine)]),
        ):
            published = (self._published(kind, what) for kind in kinds)
            if word is not None and word not in names and not any(word in words for words in published):
                raise ValueError(f"a {kinds[0]} has no {what} {word!r:.60}; {advice(word, names)}")

    def _published(self, kind: str, what: str) -> set[str]:
        """The states or events of other lifecycles: the published ones, and the test's own."""
        runtime = self.world.runtime
        others: list[Any] = [kinds[kind] for kinds in LIFECYCLES.values() if kind in kinds]
        others += [] if runtime is None else [one for one in runtime.lifecycles.own if one.kind == kind]
        return {
            str(word) for one in others for word in (one.machine.states if what == "state" else _events(one.machine))
        }

    @property
    def notices(self) -> list[Notice]:
        """The notices of the runtime, in order."""
        return self.world.notices

    @property
    def started(self) -> list[tuple[str, str, int]]:
        """The calls that really started, in order: (kind, id of its task or workstream, fencing token)."""
        return self.world.started

    @property
    def trace(self) -> Trace:
        """The trace of all steps."""
        return self.world.trace

    def findings(self) -> list[str]:
        """The findings of `callboard check` about the durable data, in words; empty if there are none."""
        lifecycles = [] if self.world.runtime is None else self.world.runtime.lifecycles.own
        found = examine(self.world.journal, lifecycles=lifecycles).found
        return [f"{one.kind}: {one.entity_id or ''} {one.text}" for one in found if one.severity == "error"]

    def check(self) -> None:
        """Raise AssertionError if transitions break a rule or an invariant, or an actor failed in a turn."""
        with self._telling():
            found = [*self.findings(), *(one.text for one in self.world.notices if one.event == "turn_undone")]
            if found:
                raise AssertionError("the journal is not in order:\n" + "\n".join(found))


def _events(machine: Machine) -> list[str]:
    events = {str(event) for state in machine.states for event in machine.valid_events(state)}
    return [*sorted(events), CREATE]


def _kinds_of(entity: str) -> list[str]:
    """The possible kinds of a future entity, by its name; empty if its name does not tell."""
    if "#" in entity:
        return ["worker"]
    return ["task", "approval", "job", "workstream"] if "/" in entity else []  # a child's id has a "/", too


def _names(row: Transitioned) -> set[str]:
    """The names of a transition's entity in tests. Without its run, a workstream's id would be its job's."""
    return {row.entity_id} if row.kind == "workstream" else {row.entity_id, _without_run(row.entity_id)}


def _without_run(entity_id: str) -> str:
    return _RUN.sub("", entity_id)
