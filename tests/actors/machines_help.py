"""Machines for tests: a run of an agent, and a document that people review."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from callboard.actors.kernel.entity import Entity
from callboard.actors.machines.entity import MachineEntity
from callboard.actors.machines.kind import Definition, MachineActor, MachineKind, revived, rows_of
from callboard.actors.messages.commands import Command, Fire, Reply, SpawnMachine
from callboard.machines import Machine, State, Timed, Transition

from .stage import KernelHarness

RUN = Machine(
    "run",
    "pending",
    [
        State("pending", bounded_by="its orchestrator"),
        State("running", bounded_by="its agent"),
        State("recovering"),
        State("success", terminal=True),
        State("failed", terminal=True),
    ],
    [
        Transition("pending", "START", "running"),
        Transition("running", "SUCCEED", "success"),
        Transition("running", "FAIL", "failed", severity="error"),
        Transition("running", "BEAT", "running"),
        Transition("running", "RECOVER", "recovering", severity="warning"),
        Transition("recovering", "START", "running"),
        Transition("recovering", "FAIL", "failed", severity="error"),
    ],
    [Timed("recovering", "FAIL", "recovery_timeout"), Timed("running", "RECOVER", "silent_at")],
)


class Facts(msgspec.Struct, frozen=True):
    """The facts of a run."""

    recovery_timeout: float | str = 60.0
    silent_at: float | None = None
    beats: int = 0


def count(facts: Facts, fire: Fire) -> Facts:
    """Count heartbeats, and set a timer for ten seconds without one."""
    return msgspec.structs.replace(facts, beats=facts.beats + 1) if fire.event == "BEAT" else facts


def enough(facts: Any, fire: Fire) -> bool:
    """Whether the document has all the approvals it needs, with this one."""
    return bool(facts.approvals + 1 >= facts.needed)


class ReviewFacts(msgspec.Struct, frozen=True):
    """The facts of a review."""

    needed: int = 2
    approvals: int = 0


def add(facts: ReviewFacts, fire: Fire) -> ReviewFacts:
    """Count an approval."""
    return msgspec.structs.replace(facts, approvals=facts.approvals + (fire.event == "approve"))


REVIEW = Machine(
    "review",
    "held",
    [State("held", bounded_by="its reviewers"), State("published", terminal=True)],
    [
        Transition("held", "approve", "published", guard=enough),
        Transition("held", "approve", "held"),
        Transition("held", "publish", "published", guard=enough),
    ],
)

FUNCTIONS: dict[str, Any] = {
    "m:RUN": RUN, "m:Facts": Facts, "m:count": count, "m:REVIEW": REVIEW, "m:ReviewFacts": ReviewFacts, "m:add": add,
    "m:enough": enough,
}  # fmt: skip


def kind(
    machine: Machine = RUN,
    facts: type[msgspec.Struct] | None = Facts,
    *,
    on_event: str | None = None,
    on_enter: Mapping[str, str] | None = None,
    on_exit: Mapping[str, str] | None = None,
    functions: Mapping[str, Any] = FUNCTIONS,
) -> MachineKind:
    """The kind of the entities, made as the runtime makes it, with the path "m:NAME"."""
    definition = Definition(
        machine=machine.name, path=f"m:{machine.name.upper()}", initial=machine.initial, states=[],
        transitions=rows_of(machine, lambda _: None), facts=None if facts is None else f"m:{facts.__name__}",
        on_event=on_event, on_enter=dict(on_enter or {}), on_exit=dict(on_exit or {}),
    )  # fmt: skip

    class Finder:
        def find(self, path: str) -> object:
            return functions[path]

        def resolve(self, name: str) -> Any:
            return functions[name]

    return revived(definition, Finder())


def spawn(stage: KernelHarness, name: str, of: MachineKind, facts: msgspec.Struct | None = None) -> MachineEntity:
    """Spawn an entity."""
    raw = None if facts is None else msgspec.Raw(msgspec.json.encode(facts))
    stage.send(SpawnMachine(name, of, raw))
    return stage.kernel.machines[name]


def fire(stage: KernelHarness, name: str, event: str, **more: Any) -> Any:
    """Fire an event, and return its answer, or the refusal."""
    stage.send(Command(name, Fire(event, **more), Reply(None)))
    value, error = stage.answers[-1]
    return value if error is None else error


__all__ = ["FUNCTIONS", "REVIEW", "RUN", "Entity", "Facts", "MachineActor", "ReviewFacts", "fire", "kind", "spawn"]
