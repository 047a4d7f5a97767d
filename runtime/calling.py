"""The calls that the host of the lifecycle actors has performed, and how a call ended.

`runtime/execution/` performs them, on the engines. The host and the handles use only this interface of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

if TYPE_CHECKING:
    from ..actors.kernel.transaction import ApprovalDecided, RunHook, StartCall
    from ..actors.spec.model import Hook

Status = Literal["ok", "again", "failed", "cancelled", "abandoned", "lost"]
Category = Literal["transient", "resources", "permanent", "unknown"]


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An error in its recorded form. Texts are bounded and valid Unicode.

    permanent: another try cannot help (the body said so, or it is certain, as for a command that does not exist).
    category: the prospect of another try, see `failures.py`. retry_after: seconds that the body asked for. kinds: the
    names of its class and its base classes; for a group also those that all members share. leaves: for a group of
    several errors, the same names for each member, with its category.
    """

    type: str
    message: str
    permanent: bool = False
    retry_after: float | None = None
    category: Category = "unknown"
    traceback: str = ""
    kinds: Sequence[str] = ()
    leaves: Sequence[Sequence[str]] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How a call ended. duration in seconds. exit_code is for commands only, the output fields also for processes.

    exit_code: unlike in a shell, a process killed by signal n has exit code -n. output_size: bytes that were written,
    kept or not. output_tail: the last lines. escaped: a descendant of the command left its process group and still
    holds its output. left_behind: the process ids of running descendants that left its group, or the worker process's
    group (`strays.py`). cpu_seconds, peak_memory_bytes: resources used by a command, or by a body in a worker process
    (`usage.py`); None: not known. unasked: the labels of kept steps that a body in another process never asked for;
    None if it took no step.
    """

    token: int
    status: Status
    value: Any = None
    error: ErrorInfo | None = None
    exit_code: int | None = None
    output_path: str | None = None
    output_size: int | None = None
    output_tail: str = ""
    duration: float = 0.0
    escaped: bool = False
    left_behind: tuple[int, ...] = ()
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    unasked: tuple[str, ...] | None = None


class Progress(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress that a body has reported: `done` of `of` (None: the total is unknown), and a text."""

    done: float
    of: float | None = None
    text: str = ""


class Shown(msgspec.Struct, frozen=True, omit_defaults=True):
    """The output of a running body, on its way to the runtime: its latest progress, and the text that it emitted.

    skipped: characters before `text` that were dropped on the way.
    """

    progress: Progress | None = None
    text: str = ""
    skipped: int = 0


class ProcessInfo(msgspec.Struct, frozen=True):
    """Identifies the process group of a command or a worker, to find it again after the runtime was killed.

    started: the kernel's start time of the process in clock ticks since boot (0 if it is not known).
    """

    token: int
    pid: int
    pgid: int
    started: int


Ended = Callable[[Outcome], None]


class Workers(Protocol):
    """The workers of one engine (`runtime/engines/contract.py`)."""

    def probe(self, worker: str, incarnation: int) -> tuple[int, ...] | None:
        """Probe a worker: the tokens that run on it, or None if its own process will answer."""
        ...

    def start_worker(self, worker: str, incarnation: int) -> None:
        """Register a new incarnation of a worker; its earlier incarnations are over."""
        ...

    def stop_worker(self, worker: str, incarnation: int, deadline: float) -> None:
        """Let a worker's process end after its running calls; kill it after `deadline` seconds."""
        ...

    def kill_worker(self, worker: str, incarnation: int) -> None:
        """Kill a worker's process; its running calls end as lost."""
        ...

    def forget_worker(self, worker: str) -> None:
        """Drop all data about a worker, by its name, that ended long ago."""
        ...

    def release(self) -> None:
        """Release idle resources, such as processes, that were kept for later: resources ran out."""
        ...


class ApprovalAnswers(Protocol):
    """The bodies that wait for approvals."""

    def answer(self, effect: ApprovalDecided) -> None:
        """Pass on a decision to the body that waits for it."""
        ...


class Calls(Protocol):
    """Performs calls (`runtime/execution/calls.py`)."""

    failed_hooks: int

    @property
    def engines(self) -> Mapping[str, Workers]:
        """The engines, by name."""
        ...

    @property
    def kept(self) -> Collection[int]:
        """The tokens of questions whose function is missing."""
        ...

    def only_waits(self, token: int) -> bool:
        """Whether all that a body does is to wait durably (a time, a message, a decision): a stop loses nothing."""
        ...

    @property
    def approvals(self) -> ApprovalAnswers:
        """The bodies that wait for approvals."""
        ...

    def start(self, effect: StartCall) -> None:
        """Start a call that an entity asked for."""
        ...

    def stop(self, token: int, *, force: bool = False) -> None:
        """Stop a call."""
        ...

    def hook(self, effect: RunHook) -> None:
        """Run a hook from the outbox."""
        ...

    def check(self, hook: Hook, name: str, ended: Ended) -> int:
        """Run a check that no entity asked for. Returns its token, to stop it."""
        ...

    def abandon(self) -> None:
        """Stop all calls at once."""
        ...
