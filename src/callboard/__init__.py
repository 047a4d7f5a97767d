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
    "machines.lifecycle": "Lifecycle",
    "actors.actor": "Actor Context Refusal Terminated",
    "actors.actor_errors": (
        "ActorError ActorStopped AskCycleError AskTimeout ChildFailed MailboxFull NameTaken NoEventLoop ReceiveFailed"
        " RestartLimitReached"
    ),
    "actors.dead_letters": "DeadLetter",
    "actors.errors": "ApprovalExpired ApprovalRejected AttemptOver CircuitOpen Permanent RetryAfter TaskCancelled",
    "actors.machine_kind": "FireFailed MachineActor MachineConflict MachineNotFound",
    "actors.commands": "Fire",
    "actors.notices": "Notice",
    "actors.protection": "DecisionConflict DecisionRefused",
    "actors.base_record": "Decision",
    "actors.records": "MachineRecord WorkerRecord",
    "actors.task_record": "AttemptRecord TaskRecord",
    "actors.transitions": "Transitioned",
    "actors.ref": "Ref",
    "actors.spec": (
        "Alert Approval Breaker Check Clause Condition Defaults HealthChecks Hook Retry Task Tool Worker Workstream"
    ),
    "actors.strategy": "Directive Restart Strategy Supervision",
    "actors.validate": "SpecificationError",
    "runtime.approvals": "PendingApproval",
    "runtime.breakers": "BreakerHandle CheckFailed",
    "runtime.clock": "VirtualClock",
    "runtime.engines.childjob": "ChildJob",
    "runtime.engines.context": "TaskContext",
    "runtime.engines.raycluster": "RayCluster RayUnavailable",
    "runtime.engines.values": "NotSerialisable",
    "runtime.handles": "JobHandle TaskHandle",
    "runtime.control.told": "CommandFailed",
    "runtime.journal.cluster": "LeaseLost Node",
    "runtime.journal.contract": (
        "JournalCorrupt JournalError JournalLocked JournalMissing JournalTooNew JournalUnwritable"
    ),
    "runtime.jsonl": "LogConflict",
    "runtime.machinefile": "load_machine",
    "runtime.machines": "MachineRef",
    "runtime.references": "EntityRef",
    "runtime.observe": "Dropped",
    "runtime.outcomes": "JobExists JobFailed Outcome RuntimeClosed",
    "runtime.requests": "RequestIdReused",
    "runtime.runtime": "Runtime",
    "runtime.secrets": "SecretMissing",
    "runtime.specfile": "RunFile load",
    "runtime.workers": "WorkerHandle",
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

if TYPE_CHECKING:
    from .actors.actor import Actor, Context, Refusal, Terminated
    from .actors.actor_errors import (
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
    from .actors.base_record import Decision
    from .actors.commands import Fire
    from .actors.dead_letters import DeadLetter
    from .actors.errors import (
        ApprovalExpired,
        ApprovalRejected,
        AttemptOver,
        CircuitOpen,
        Permanent,
        RetryAfter,
        TaskCancelled,
    )
    from .actors.machine_kind import FireFailed, MachineActor, MachineConflict, MachineNotFound
    from .actors.notices import Notice
    from .actors.protection import DecisionConflict, DecisionRefused
    from .actors.records import MachineRecord, WorkerRecord
    from .actors.ref import Ref
    from .actors.spec import (
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
    from .actors.strategy import Directive, Restart, Strategy, Supervision
    from .actors.task_record import AttemptRecord, TaskRecord
    from .actors.transitions import Transitioned
    from .actors.validate import SpecificationError
    from .machines import GuardRejected, InvalidTransitionError, Machine, Phase, State, Timed, Transition
    from .machines.lifecycle import Lifecycle
    from .runtime.approvals import PendingApproval
    from .runtime.breakers import BreakerHandle, CheckFailed
    from .runtime.clock import VirtualClock
    from .runtime.control.told import CommandFailed
    from .runtime.engines.childjob import ChildJob
    from .runtime.engines.context import TaskContext
    from .runtime.engines.raycluster import RayCluster, RayUnavailable
    from .runtime.engines.values import NotSerialisable
    from .runtime.handles import JobHandle, TaskHandle
    from .runtime.journal.cluster import LeaseLost, Node
    from .runtime.journal.contract import (
        JournalCorrupt,
        JournalError,
        JournalLocked,
        JournalMissing,
        JournalTooNew,
        JournalUnwritable,
    )
    from .runtime.jsonl import LogConflict
    from .runtime.machinefile import load_machine
    from .runtime.machines import MachineRef
    from .runtime.observe import Dropped
    from .runtime.outcomes import JobExists, JobFailed, Outcome, RuntimeClosed
    from .runtime.references import EntityRef
    from .runtime.requests import RequestIdReused
    from .runtime.runtime import Runtime
    from .runtime.secrets import SecretMissing
    from .runtime.specfile import RunFile, load
    from .runtime.workers import WorkerHandle
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
