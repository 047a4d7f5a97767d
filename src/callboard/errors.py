"""The public errors of Callboard, and the module of each.

Rules
-----
- An error's name says what happened, without a suffix: `JobFailed`, `AskTimeout`. `Error` ends only the names of base
  classes that catch all errors of a subject: `ActorError`, `JournalError`, `InvalidTransitionError`, and
  `SpecificationError`, whose kinds are its findings. A test checks this.
- The names are `__all__`, and a test pins them. Importing this imports nothing else, as with `callboard`.
- An older name, and the older place `callboard`, work until 1.0 with a DeprecationWarning. Recorded names, as in
  `Breaker(ignore=...)`, match forever: `actors/spec/error_names.py` lists the renamed errors.
"""

from typing import TYPE_CHECKING

from . import _imported

__all__ = [
    "ActorError",
    "ActorStopped",
    "ApprovalExpired",
    "ApprovalRejected",
    "AskCycle",
    "AskTimeout",
    "AttemptOver",
    "CheckFailed",
    "ChildFailed",
    "CircuitOpen",
    "CommandFailed",
    "DecisionConflict",
    "DecisionRefused",
    "FireFailed",
    "FlowAsleep",
    "FlowChanged",
    "GuardRejected",
    "InvalidTransitionError",
    "JobExists",
    "JobFailed",
    "JournalCorrupt",
    "JournalError",
    "JournalLocked",
    "JournalMissing",
    "JournalTooNew",
    "JournalUnwritable",
    "LeaseLost",
    "LogConflict",
    "MachineConflict",
    "MachineNotFound",
    "MailboxFull",
    "MessageInvalid",
    "NameTaken",
    "NoEventLoop",
    "NotSerialisable",
    "Permanent",
    "RayUnavailable",
    "ReceiveFailed",
    "ReceiveTimeout",
    "RequestIdReused",
    "RestartLimitReached",
    "RetryAfter",
    "RuntimeClosed",
    "SecretMissing",
    "SpecificationError",
    "StepFailed",
    "TaskCancelled",
    "TooManyMessages",
]

_NAMES_BY_MODULE = {
    "actors.users.errors": (
        "ActorError ActorStopped AskCycle AskTimeout ChildFailed MailboxFull NameTaken NoEventLoop"
        " ReceiveFailed RestartLimitReached"
    ),
    "actors.messages.errors": (
        "ApprovalExpired ApprovalRejected AttemptOver CircuitOpen FireFailed FlowAsleep FlowChanged MachineConflict"
        " MachineNotFound MessageInvalid Permanent ReceiveTimeout RetryAfter StepFailed TaskCancelled TooManyMessages"
    ),
    "runtime.handles.breakers": "CheckFailed",
    "runtime.commands.wire_errors": "CommandFailed",
    "actors.tasks.holds": "DecisionConflict DecisionRefused",
    "machines": "GuardRejected InvalidTransitionError",
    "runtime.errors": (
        "JobExists JournalCorrupt JournalError JournalLocked JournalMissing JournalTooNew JournalUnwritable LeaseLost"
        " RuntimeClosed"
    ),
    "runtime.handles.outcomes": "JobFailed",
    "runtime.journal.jsonl": "LogConflict",
    "runtime.values": "NotSerialisable",
    "runtime.engines.ray.cluster": "RayUnavailable",
    "runtime.commands.idempotency": "RequestIdReused",
    "runtime.text.secrets": "SecretMissing",
    "actors.spec.validate": "SpecificationError",
}
_MODULES = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}

if TYPE_CHECKING:
    from .actors.messages.errors import (
        ApprovalExpired,
        ApprovalRejected,
        AttemptOver,
        CircuitOpen,
        FireFailed,
        FlowAsleep,
        FlowChanged,
        MachineConflict,
        MachineNotFound,
        MessageInvalid,
        Permanent,
        ReceiveTimeout,
        RetryAfter,
        StepFailed,
        TaskCancelled,
        TooManyMessages,
    )
    from .actors.spec.validate import SpecificationError
    from .actors.tasks.holds import DecisionConflict, DecisionRefused
    from .actors.users.errors import (
        ActorError,
        ActorStopped,
        AskCycle,
        AskTimeout,
        ChildFailed,
        MailboxFull,
        NameTaken,
        NoEventLoop,
        ReceiveFailed,
        RestartLimitReached,
    )
    from .machines import GuardRejected, InvalidTransitionError
    from .runtime.commands.idempotency import RequestIdReused
    from .runtime.commands.wire_errors import CommandFailed
    from .runtime.engines.ray.cluster import RayUnavailable
    from .runtime.errors import (
        JobExists,
        JournalCorrupt,
        JournalError,
        JournalLocked,
        JournalMissing,
        JournalTooNew,
        JournalUnwritable,
        LeaseLost,
        RuntimeClosed,
    )
    from .runtime.handles.breakers import CheckFailed
    from .runtime.handles.outcomes import JobFailed
    from .runtime.journal.jsonl import LogConflict
    from .runtime.text.secrets import SecretMissing
    from .runtime.values import NotSerialisable

    AskCycleError = AskCycle
else:  # with this, type checkers would accept any name

    def __getattr__(name: str) -> object:
        """Import an error when it is first used, and keep it."""
        if name not in _MODULES:
            return from_old_place(name, __name__)
        return _imported(_MODULES[name], name, globals())

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})


def from_old_place(name: str, place: str = "callboard") -> object:
    """Find an error by an older name or place. Raises AttributeError for an unknown name."""
    now = name
    if name not in _MODULES and name.endswith("Error"):
        from .actors.spec.error_names import RENAMED  # noqa: PLC0415 - most names are present ones

        now = RENAMED.get(name, name)
    if now not in _MODULES:
        raise AttributeError(f"module {place!r} has no attribute {name!r}")
    from warnings import warn  # noqa: PLC0415 - as above

    warn(
        f"{place}.{name} is callboard.errors.{now} now; 1.0 removes the old name",
        DeprecationWarning,
        stacklevel=3,  # the caller of `__getattr__`
    )
    return _imported(_MODULES[now], now, globals())
