"""The lifecycles that teams have published: `LIFECYCLES[name][kind]`.

Each file holds the machines of one document, with exactly its states, events and transitions, and the mapping by which
the runtime's actors run by them. If a document names no event, its words make the event's name. If documents
contradict themselves or each other, the file states the decision. A file is imported on first use: most programs
need the runtime's own lifecycles only, and should start quickly.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from ..adapt.lifecycle import Lifecycle

if TYPE_CHECKING:
    from ..machine import Machine
    from . import execution, fleet, guarded, orchestration, pipeline

    PUBLISHED: Mapping[str, Machine]
    """The machines by their names, which are those of their files and constants: `pipeline.step`."""

_DOCUMENTS: Final = {
    "pipeline": ("WORKSTREAM", "STEP", "CIRCUIT_BREAKER"),
    "orchestration": ("TASK", "WORKSTREAM", "WORKER"),
    "fleet": ("WORKER", "JOB"),
    "guarded": ("TASK",),
    "execution": ("EXECUTION",),
}
"""The files, and the machines in each."""


class _Lifecycles(Mapping[str, Mapping[str, Lifecycle]]):
    """The lifecycles of each file by their kinds."""

    def __init__(self) -> None:
        self._read: dict[str, Mapping[str, Lifecycle]] = {}

    def __getitem__(self, name: str) -> Mapping[str, Lifecycle]:
        if name not in self._read:
            if name not in _DOCUMENTS:
                raise KeyError(name)
            self._read[name] = {lifecycle.kind: lifecycle for lifecycle in _module(name).LIFECYCLES}
        return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_DOCUMENTS)

    def __len__(self) -> int:
        return len(_DOCUMENTS)

    def __contains__(self, name: object) -> bool:
        return name in _DOCUMENTS


def _module(name: str) -> Any:
    return import_module(f".{name}", __name__)


def __getattr__(name: str) -> Mapping[str, Machine]:
    if name != "PUBLISHED":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    machines: list[Machine] = [
        getattr(_module(document), constant) for document, constants in _DOCUMENTS.items() for constant in constants
    ]
    published = globals()[name] = {machine.name: machine for machine in machines}
    return published


LIFECYCLES: Final[Mapping[str, Mapping[str, Lifecycle]]] = _Lifecycles()

__all__ = ["LIFECYCLES", "PUBLISHED", "execution", "fleet", "guarded", "orchestration", "pipeline"]
