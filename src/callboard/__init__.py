"""Callboard: durable, supervised long-lived jobs inside an async Python application.

This module is the list of the public names, and of where each one lives. Rules:

- Importing it imports nothing else: a name's module is imported when the name is first asked for.
- The names are `__all__`, and a test pins them. Whatever else can be imported from below may change with any version.
"""

from typing import TYPE_CHECKING

__all__ = [
    "Actor",
    "ActorError",
    "ActorStopped",
    "Alert",
    "Approval",
    "ApprovalExpired",
    "ApprovalRejected",
    "AskCycleError",
    "AskTimeout",
    "AttemptOver",
    "AttemptRecord",
    "Breaker",
    "BreakerHandle",
    "Check",
    "CheckFailed",
    "ChildFailed",
    "ChildJob",
    "CircuitOpen",
    "Clause",
    "CommandFailed",
    "Condition",
    "Context",
    "DeadLetter",
    "Decision",
    "DecisionConflict",
    "DecisionRefused",
    "Defaults",
    "Directive",
    "Dropped",
    "EntityRef",
    "Fire",
    "FireFailed",
    "GuardRejected",
    "HealthChecks",
    "Hook",
    "InvalidTransitionError",
    "JobExists",
    "JobFailed",
    "JobHandle",
    "JournalCorrupt",
    "JournalError",
    "JournalLocked",
    "JournalMissing",
    "JournalTooNew",
    "JournalUnwritable",
    "LeaseLost",
    "Lifecycle",
    "LogConflict",
    "Machine",
    "MachineActor",
    "MachineConflict",
    "MachineNotFound",
    "MachineRecord",
    "MachineRef",
    "MailboxFull",
    "NameTaken",
    "NoEventLoop",
    "Node",
    "NotSerialisable",
    "Notice",
    "Outcome",
    "PendingApproval",
    "Permanent",
    "Phase",
    "RayCluster",
    "RayUnavailable",
    "ReceiveFailed",
    "Ref",
    "Refusal",
    "RequestIdReused",
    "Restart",
    "RestartLimitReached",
    "Retry",
    "RetryAfter",
    "RunFile",
    "Runtime",
    "RuntimeClosed",
    "SecretMissing",
    "SpecificationError",
    "State",
    "Strategy",
    "Supervision",
    "Task",
    "TaskCancelled",
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
]

_NAMES_BY_MODULE = {
    "machines": "GuardRejected InvalidTransitionError Machine Phase State Timed Transition",
    "machines.adapt.lifecycle": "Lifecycle",
    "actors.users.actor": "Actor Context Refusal Terminated",
    "actors.users.errors": (
        "ActorError ActorStopped AskCycleError AskTimeout ChildFailed MailboxFull NameTaken NoEventLoop ReceiveFailed"
        " RestartLimitReached"
    ),
    "actors.users.dead_letters": "DeadLetter",
    "actors.messages.errors": (
        "ApprovalExpired ApprovalRejected AttemptOver CircuitOpen Permanent RetryAfter TaskCancelled"
    ),
    "actors.machines.kind": "FireFailed MachineActor MachineConflict MachineNotFound",
    "actors.messages.commands": "Fire",
    "actors.messages.notices": "Notice",
    "actors.tasks.holds": "DecisionConflict DecisionRefused",
    "actors.records.base": "Decision",
    "actors.records.entities": "MachineRecord WorkerRecord",
    "actors.records.task": "AttemptRecord TaskRecord",
    "actors.records.transition": "Transitioned",
    "actors.users.ref": "Ref",
    "actors.spec.model": (
        "Alert Approval Breaker Check Clause Condition Defaults HealthChecks Hook Retry Task Tool Worker Workstream"
    ),
    "actors.users.strategy": "Directive Restart Strategy Supervision",
    "actors.spec.validate": "SpecificationError",
    "runtime.handles.approvals": "PendingApproval",
    "runtime.handles.breakers": "BreakerHandle CheckFailed",
    "runtime.dispatch.clock": "VirtualClock",
    "runtime.engines.child_job": "ChildJob",
    "runtime.engines.context": "TaskContext",
    "runtime.engines.ray.cluster": "RayCluster RayUnavailable",
    "runtime.engines.values": "NotSerialisable",
    "runtime.handles.jobs": "JobHandle TaskHandle",
    "runtime.commands.wire_errors": "CommandFailed",
    "runtime.journal.cluster": "LeaseLost Node",
    "runtime.journal.contract": (
        "JournalCorrupt JournalError JournalLocked JournalMissing JournalTooNew JournalUnwritable"
    ),
    "runtime.observation.jsonl": "LogConflict",
    "runtime.specfiles.machine_file": "load_machine",
    "runtime.handles.machines": "MachineRef",
    "runtime.handles.references": "EntityRef",
    "runtime.observation.events": "Dropped",
    "runtime.handles.outcomes": "JobExists JobFailed Outcome RuntimeClosed",
    "runtime.commands.idempotency": "RequestIdReused",
    "runtime.runtime": "Runtime",
    "runtime.execution.secrets": "SecretMissing",
    "runtime.specfiles.workstream_file": "RunFile load",
    "runtime.handles.workers": "WorkerHandle",
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

if TYPE_CHECKING:
    from .actors.machines.kind import FireFailed, MachineActor, MachineConflict, MachineNotFound
    from .actors.messages.commands import Fire
    from .actors.messages.errors import (
        ApprovalExpired,
        ApprovalRejected,
        AttemptOver,
        CircuitOpen,
        Permanent,
        RetryAfter,
        TaskCancelled,
    )
    from .actors.messages.notices import Notice
    from .actors.records.base import Decision
    from .actors.records.entities import MachineRecord, WorkerRecord
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
    from .actors.spec.validate import SpecificationError
    from .actors.tasks.holds import DecisionConflict, DecisionRefused
    from .actors.users.actor import Actor, Context, Refusal, Terminated
    from .actors.users.dead_letters import DeadLetter
    from .actors.users.errors import (
        ActorError,
        ActorStopped,
        AskCycleError,
        AskTimeout,
        ChildFailed,
        MailboxFull,
        NameTaken,
        NoEventLoop,
        ReceiveFailed,
        RestartLimitReached,
    )
    from .actors.users.ref import Ref
    from .actors.users.strategy import Directive, Restart, Strategy, Supervision
    from .machines import GuardRejected, InvalidTransitionError, Machine, Phase, State, Timed, Transition
    from .machines.adapt.lifecycle import Lifecycle
    from .runtime.commands.idempotency import RequestIdReused
    from .runtime.commands.wire_errors import CommandFailed
    from .runtime.dispatch.clock import VirtualClock
    from .runtime.engines.child_job import ChildJob
    from .runtime.engines.context import TaskContext
    from .runtime.engines.ray.cluster import RayCluster, RayUnavailable
    from .runtime.engines.values import NotSerialisable
    from .runtime.execution.secrets import SecretMissing
    from .runtime.handles.approvals import PendingApproval
    from .runtime.handles.breakers import BreakerHandle, CheckFailed
    from .runtime.handles.jobs import JobHandle, TaskHandle
    from .runtime.handles.machines import MachineRef
    from .runtime.handles.outcomes import JobExists, JobFailed, Outcome, RuntimeClosed
    from .runtime.handles.references import EntityRef
    from .runtime.handles.workers import WorkerHandle
    from .runtime.journal.cluster import LeaseLost, Node
    from .runtime.journal.contract import (
        JournalCorrupt,
        JournalError,
        JournalLocked,
        JournalMissing,
        JournalTooNew,
        JournalUnwritable,
    )
    from .runtime.observation.events import Dropped
    from .runtime.observation.jsonl import LogConflict
    from .runtime.runtime import Runtime
    from .runtime.specfiles.machine_file import load_machine
    from .runtime.specfiles.workstream_file import RunFile, load
else:  # type checkers would take any name for one of ours, if they saw this

    def __getattr__(name: str) -> object:
        """Import a public name when it is first asked for, and keep it."""
        from importlib import import_module  # noqa: PLC0415 - the cost of the first name, not of the import

        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
