"""The lifecycles that teams have published, as they are: `LIFECYCLES[name][kind]`.

Each file holds the machines of one document, with exactly its states, events and transitions, and how the
runtime's actors run by them. Where a document names no event, the name is made of its words. Where documents
contradict themselves or each other, the file says what was decided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ..lifecycle import Lifecycle
from ..machine import Machine
from . import execution, fleet, guarded, orchestration, pipeline


def _by_kind(lifecycles: Iterable[Lifecycle]) -> dict[str, Lifecycle]:
    return {lifecycle.kind: lifecycle for lifecycle in lifecycles}


LIFECYCLES: Final[Mapping[str, Mapping[str, Lifecycle]]] = {
    "pipeline": _by_kind(pipeline.LIFECYCLES),
    "orchestration": _by_kind(orchestration.LIFECYCLES),
    "fleet": _by_kind(fleet.LIFECYCLES),
    "guarded": _by_kind(guarded.LIFECYCLES),
    "execution": _by_kind(execution.LIFECYCLES),
}

PUBLISHED: Final[Mapping[str, Machine]] = {
    machine.name: machine
    for machine in (
        pipeline.WORKSTREAM,
        pipeline.STEP,
        pipeline.CIRCUIT_BREAKER,
        orchestration.TASK,
        orchestration.WORKSTREAM,
        orchestration.WORKER,
        fleet.WORKER,
        fleet.JOB,
        guarded.TASK,
        execution.EXECUTION,
    )
}
"""The machines by their names, which are those of their files and constants: `pipeline.step`."""

__all__ = ["LIFECYCLES", "PUBLISHED", "execution", "fleet", "guarded", "orchestration", "pipeline"]
