"""Callboard: durable, supervised long-lived jobs inside an async Python application.

This module lists the public names, and the module of each. Rules:

- Importing it imports nothing else: a name's module is imported when the name is first used.
- The names are `__all__`, and a test pins them. All other names may change with any version.
- Errors are in `callboard.errors`. Until 1.0 they can be imported from here as well, with a DeprecationWarning.
"""

from typing import TYPE_CHECKING, Any

__all__ = [
    "Actor",
    "Alert",
    "Approval",
    "AttemptRecord",
    "Breaker",
    "BreakerHandle",
    "Check",
    "ChildJob",
    "Clause",
    "Condition",
    "Context",
    "DeadLetter",
    "Decision",
    "Defaults",
    "Directive",
    "Dropped",
    "EntityRef",
    "Fire",
    "HealthChecks",
    "Hook",
    "JobHandle",
    "Lifecycle",
    "Machine",
    "MachineActor",
    "MachineRecord",
    "MachineRef",
    "Node",
    "Notice",
    "Outcome",
    "PendingApproval",
    "Phase",
    "Progress",
    "RayCluster",
    "Ref",
    "Refusal",
    "Restart",
    "Retry",
    "RunFile",
    "Runtime",
    "State",
    "StepRecord",
    "Strategy",
    "Supervision",
    "Task",
    "TaskContext",
    "TaskHandle",
    "TaskRecord",
    "Terminated",
    "Timed",
    "Tool",
    "Transition",
    "Transitioned",
    "VirtualClock",
    "Worker",
    "WorkerHandle",
    "WorkerRecord",
    "Workstream",
    "load",
    "load_machine",
    "step",
]

_NAMES_BY_MODULE = {
    "actors.users.actor": "Actor Context Refusal Terminated",
    "actors.spec.model": (
        "Alert Approval Breaker Check Clause Condition Defaults HealthChecks Hook Retry Task Tool Worker Workstream"
    ),
    "actors.records.step": "StepRecord",
    "actors.records.task": "AttemptRecord TaskRecord",
    "runtime.handles.breakers": "BreakerHandle",
    "runtime.engines.child_job": "ChildJob",
    "actors.users.dead_letters": "DeadLetter",
    "actors.records.base": "Decision",
    "actors.users.strategy": "Directive Restart Strategy Supervision",
    "runtime.calling": "Progress",
    "runtime.observation.events": "Dropped",
    "runtime.handles.references": "EntityRef",
    "actors.messages.commands": "Fire",
    "runtime.handles.jobs": "JobHandle TaskHandle",
    "machines.adapt.lifecycle": "Lifecycle",
    "machines": "Machine Phase State Timed Transition",
    "actors.machines.kind": "MachineActor",
    "actors.records.entities": "MachineRecord WorkerRecord",
    "runtime.handles.machine_refs": "MachineRef",
    "runtime.journal.cluster": "Node",
    "actors.messages.notices": "Notice",
    "runtime.handles.outcomes": "Outcome",
    "runtime.handles.approvals": "PendingApproval",
    "runtime.engines.ray.cluster": "RayCluster",
    "actors.users.ref": "Ref",
    "runtime.specfiles.workstream_file": "RunFile load",
    "runtime.runtime": "Runtime",
    "runtime.engines.context": "TaskContext",
    "actors.records.transition": "Transitioned",
    "runtime.dispatch.clock": "VirtualClock",
    "runtime.handles.workers": "WorkerHandle",
    "runtime.specfiles.machine_file": "load_machine",
    "runtime.engines.steps": "step",
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

if TYPE_CHECKING:
    from .actors.machines.kind import MachineActor
    from .actors.messages.commands import Fire
    from .actors.messages.notices import Notice
    from .actors.records.base import Decision
    from .actors.records.entities import MachineRecord, WorkerRecord
    from .actors.records.step import StepRecord
    from .actors.records.task import AttemptRecord, TaskRecord
    from .actors.records.transition import Transitioned
    from .actors.spec.model import (
        Alert,
        Approval,
        Breaker,
        Check,
        Clause,
        Condition,
        Defaults,
        HealthChecks,
        Hook,
        Retry,
        Task,
        Tool,
        Worker,
        Workstream,
    )
    from .actors.users.actor import Actor, Context, Refusal, Terminated
    from .actors.users.dead_letters import DeadLetter
    from .actors.users.ref import Ref
    from .actors.users.strategy import Directive, Restart, Strategy, Supervision
    from .errors import *  # noqa: F403 - until 1.0
    from .errors import AskCycleError as AskCycleError
    from .machines import Machine, Phase, State, Timed, Transition
    from .machines.adapt.lifecycle import Lifecycle
    from .runtime.calling import Progress
    from .runtime.dispatch.clock import VirtualClock
    from .runtime.engines.child_job import ChildJob
    from .runtime.engines.context import TaskContext
    from .runtime.engines.ray.cluster import RayCluster
    from .runtime.engines.steps import step
    from .runtime.handles.approvals import PendingApproval
    from .runtime.handles.breakers import BreakerHandle
    from .runtime.handles.jobs import JobHandle, TaskHandle
    from .runtime.handles.machine_refs import MachineRef
    from .runtime.handles.outcomes import Outcome
    from .runtime.handles.references import EntityRef
    from .runtime.handles.workers import WorkerHandle
    from .runtime.journal.cluster import Node
    from .runtime.observation.events import Dropped
    from .runtime.runtime import Runtime
    from .runtime.specfiles.machine_file import load_machine
    from .runtime.specfiles.workstream_file import RunFile, load

    __version__: str
else:  # with this, type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import a public name when it is first used, and keep it."""
        if name in _MODULES:
            return _imported(_MODULES[name], name, globals())
        if name == "__version__":
            return _version(globals())
        from importlib import import_module  # noqa: PLC0415 - `from . import errors` would call this function again

        return import_module(".errors", __name__).from_old_place(name)

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__, "__version__"})


def _version(into: dict[str, Any]) -> str:
    """The version that is installed ("unknown" in a checkout that is not), and keep it."""
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slower than all of this module

    try:
        into["__version__"] = version(__name__)
    except PackageNotFoundError:
        into["__version__"] = "unknown"
    return str(into["__version__"])


def _imported(module: str, name: str, into: dict[str, Any]) -> object:
    """Import a public name from its module, and keep it."""
    from importlib import import_module  # noqa: PLC0415 - only the first name pays for it, not the import

    value = into[name] = getattr(import_module(f".{module}", __name__), name)
    return value
