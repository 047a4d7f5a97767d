"""The ends of calls, as inputs of the kernel. `calls.py` starts the calls.

Rules
-----
- Each call is reported exactly once, also one that could not be started.
- Outcomes of calls that got secrets are masked before they go on.
- A failed hook is reported and counted, and changes no state.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import msgspec

from ...actors.messages.inputs import Beat, CallEnded
from ...actors.spec.model import Hook
from ...actors.times import seconds
from ...actors.user_code import is_a, kind_name, text_of
from ..calling import Category, ErrorInfo, Outcome, Shown
from ..dispatch.timers import Timer, Timers
from ..engines.context import Checkpoint
from ..engines.contract import Call, Engine
from ..engines.failures import category_of
from ..functions.registry import BodyNotFound
from ..text.secrets import Mask
from ..text.tracebacks import frame_of
from ..values import LARGEST
from .shortages import Shortages

if TYPE_CHECKING:
    from ...actors.kernel.kernel import Kernel
    from ...actors.messages.inputs import Message
    from ...actors.records.entities import OutboxRow
    from ...actors.tasks.task import TaskActor
    from ..flows.flows import Flows
    from ..observation.live import LiveTasks

RETURNED = frozenset({"ok", "again"})
STOPPED = frozenset({"cancelled", "abandoned"})


class OutcomeReporter:
    """Turns the outcomes that engines report into inputs of the kernel."""

    def __init__(
        self,
        kernel: Kernel,
        tell: Callable[[Message], None],
        notice: Callable[..., None],
        timers: Timers,
        flows: Flows,
        *,
        live: LiveTasks,
    ) -> None:
        self._kernel = kernel
        self.live = live
        self._flows = flows
        self._tell = tell
        self._notice = notice  # `KernelHost.notice`
        self._where: dict[int, Engine] = {}  # engines of running calls, by token
        self._timers = timers
        self._limits: dict[int, Timer] = {}  # time limits of running hooks, and of steps that were told to stop
        self._late: set[int] = set()  # hooks that were stopped at their time limit
        self.failed_hooks = 0
        self.cpu_seconds: dict[str, float] = {}  # of ended calls that report it, by engine
        self.peak_memory_bytes: dict[str, int] = {}  # the largest of one call
        port = kernel.port
        self.shortages = Shortages(kernel, notice, port.now, port.monotonic)
        # Bound once: every running body holds them.
        self._report_beat = self._beat
        self._report_function = self._function_ended

    def _beat(self, token: int, details: Any) -> None:
        if isinstance(details, Shown):
            if self.live.show(token, details):
                self._tell(Beat(token, None))
        elif isinstance(details, Checkpoint):
            self._tell(Beat(token, None, self._small(token, "checkpoint", details.value)))
        else:
            self._tell(Beat(token, None if details is None else self._small(token, "heartbeat's details", details)))

    def _small(self, token: int, what: str, value: Any) -> msgspec.Raw | None:
        """Encode a value that a body saves as JSON. If it is too large for a journal, report that, and return None."""
        data = msgspec.json.encode(value)
        if len(data) <= LARGEST:
            return msgspec.Raw(data)
        owner = self._owner(token)
        text = f"the {what} of {owner} was not kept: it is larger than {LARGEST:,} bytes. Keep it in a file"
        self._notice("too_large", "warning", text, **_about(owner))
        return None

    def _beat_masked(self, mask: Mask, token: int, details: Any) -> None:
        if isinstance(details, Shown):
            if self.live.show(token, details, mask):
                self._tell(Beat(token, None))
            return
        masked = Checkpoint(mask.value(details.value)) if isinstance(details, Checkpoint) else mask.value(details)
        self._beat(token, masked)

    def _ended_masked(self, call: Call, ended: Callable[[Outcome], None], outcome: Outcome) -> None:
        """Mask the outcome of a call that got secrets, then report it."""
        mask = cast("Mask", call.mask)
        masked = _masked(outcome, mask)
        if call.kind == "body" and masked.value != outcome.value:
            owner = self._owner(call.token)
            text = f"the result of {owner} contained a secret, which was masked. Name it in each task that needs it"
            self._notice("secret_in_result", "warning", text, **_about(owner))
        ended(masked)

    def _function_ended(self, outcome: Outcome) -> None:
        if outcome.value is None:
            self._ended(outcome, None)
            return
        data = msgspec.json.encode(outcome.value)
        if len(data) <= LARGEST:
            self._ended(outcome, msgspec.Raw(data))
            return
        text = f"the result has {len(data):,} bytes; at most {LARGEST:,} are allowed. Return the path of a file"
        error = ErrorInfo(type="result_not_serialisable", message=text, permanent=True, category="permanent")
        self._ended(msgspec.structs.replace(outcome, status="failed", value=None, error=error), None)

    def _process_ended(self, outcome: Outcome) -> None:
        """Report the end of a body in a process. Its printed output stays in its file, and is not part of its error."""
        self._function_ended(msgspec.structs.replace(outcome, output_tail="") if outcome.output_tail else outcome)

    def _report_step(self, outcome: Outcome) -> None:
        """Report the end of a step that ran on a worker: to the kernel, and to the body that waits for it."""
        self._unlimit(outcome.token)
        self._ended(msgspec.structs.replace(outcome, output_tail=""), None)
        self._flows.step_runs.ended(outcome)

    def _command_ended(self, outcome: Outcome) -> None:
        if outcome.status in STOPPED and outcome.output_path is not None and not self._keeps_output(outcome.token):
            Path(outcome.output_path).unlink(missing_ok=True)
            outcome = msgspec.structs.replace(outcome, output_path=None)
        value = {"exit_code": outcome.exit_code, "output": outcome.output_tail}
        self._ended(outcome, msgspec.Raw(msgspec.json.encode(value)))

    def _keeps_output(self, token: int) -> bool:
        """Whether the output of a command that was stopped is kept."""
        call = self._kernel.calls.get(token)
        task = None if call is None else self._kernel.entities.get(call.key)
        return task is None or cast("TaskActor", task).limits.save_partial_output

    def _question_ended(self, outcome: Outcome) -> None:
        self._ended(outcome, outcome.value)

    def _condition_ended(self, outcome: Outcome) -> None:
        """Report a condition's command. Exit code 0 is yes, another code is no, anything else a failure."""
        if outcome.status == "failed" and outcome.exit_code is not None and outcome.exit_code > 0:
            outcome = msgspec.structs.replace(outcome, status="ok", value=False, error=None)
        elif outcome.status == "ok":
            outcome = msgspec.structs.replace(outcome, value=True)
        self._ended(outcome, outcome.value)

    def _hook_ended(self, row: OutboxRow, hook: Hook, outcome: Outcome) -> None:
        late = outcome.token in self._late
        self._late.discard(outcome.token)
        self._unlimit(outcome.token)
        if outcome.status != "ok" and late:
            self._hook_failed(row, hook, f"it took longer than {seconds(hook.timeout):g} s and was stopped")
        elif outcome.error is not None and outcome.status != "cancelled":  # if cancelled, it runs at the next start
            self._hook_failed(row, hook, _said(outcome.error), outcome.error)
        self._ended(outcome, None, row.owner)

    def _unlimit(self, token: int) -> None:
        """Cancel the time limit of a call that has ended."""
        if (timer := self._limits.pop(token, None)) is not None:
            self._timers.cancel(timer)

    def _count_used(self, engine: Engine | None, outcome: Outcome) -> None:
        name = "" if engine is None else engine.name
        self.cpu_seconds[name] = self.cpu_seconds.get(name, 0.0) + (outcome.cpu_seconds or 0.0)
        if (peak := outcome.peak_memory_bytes) is not None:
            self.peak_memory_bytes[name] = max(peak, self.peak_memory_bytes.get(name, 0))

    def _left_behind(self, outcome: Outcome, owner: str | None) -> None:
        numbers = outcome.left_behind
        which = f" ({', '.join(map(str, numbers))})" if numbers else ""
        text = (
            f"{owner or 'an ended call'} left processes running outside its process group{which}: "
            f"they {'still hold its output' if outcome.escaped else 'go on running'}"
        )
        self._notice("processes_left_behind", "warning", text, **_about(owner), pids=numbers)

    def _owner(self, token: int) -> str | None:
        call = self._kernel.calls.get(token)
        entity = None if call is None else self._kernel.entities.get(call.key)
        return None if entity is None else str(entity.record.id)

    def _hook_failed(self, row: OutboxRow, hook: Hook, error: str, raised: ErrorInfo | None = None) -> None:
        self.failed_hooks += 1
        text = f"{_title(row, hook)} failed: {error}"
        facts = {"hook": row.callback or row.event, "error": error}
        if raised is not None and raised.traceback:
            facts |= {"error_type": raised.type, "traceback": raised.traceback}
        self._notice("hook_failed", "error", text, **_owner_of(row), **facts)

    def _hook_waits(self, row: OutboxRow, hook: Hook, error: str) -> None:
        text = f"{_title(row, hook)} waits until a program that has its function starts: {error}"
        self._notice("hook_waits", "warning", text, **_owner_of(row), hook=row.callback or row.event, error=error)

    def _ended(self, outcome: Outcome, value: Any, owner: str | None = None) -> None:
        engine = self._where.pop(outcome.token, None)
        if self.shortages.waiting:
            self.shortages.over(outcome.token)
        if self._flows.living or outcome.unasked:
            dropped = self._flows.sleeping.body_ended(outcome.token)
            if dropped == "asleep":
                self._flows.forget(outcome.token)
                return
            if dropped == "stopped":
                cancelled = ErrorInfo(type="cancelled", message="cancelled while it fell asleep")
                outcome, value = Outcome(token=outcome.token, status="cancelled", error=cancelled), None
            self._flows.ended(outcome.token, outcome.status in RETURNED, outcome.unasked)
        if outcome.cpu_seconds is not None or outcome.peak_memory_bytes is not None:
            self._count_used(engine, outcome)
        if outcome.escaped or outcome.left_behind:
            self._left_behind(outcome, owner or self._owner(outcome.token))
        error = outcome.error
        if error is None:
            self._tell(
                CallEnded(
                    outcome.token, outcome.status, value, None, None, False, None, None, outcome.exit_code,
                    outcome.output_path, outcome.output_size, outcome.duration, None, (), (), outcome.cpu_seconds,
                    outcome.peak_memory_bytes, outcome.left_behind,
                )
            )  # fmt: skip
            return
        text = _said(error)
        if outcome.output_tail and outcome.status == "failed" and not text.endswith(outcome.output_tail):
            text = f"{text}; last output: {outcome.output_tail[-500:]}"
        self._tell(
            CallEnded(
                outcome.token, outcome.status, value, error.type, text, error.permanent, error.retry_after,
                error.category, outcome.exit_code, outcome.output_path, outcome.output_size, outcome.duration,
                error.traceback or None, error.kinds, error.leaves, outcome.cpu_seconds, outcome.peak_memory_bytes,
                outcome.left_behind,
            )
        )  # fmt: skip


def not_started(token: int, error: Exception) -> CallEnded:
    """Make the input for a call that could not be started."""
    info = why_not_started(error)
    return CallEnded(token, "failed", None, info.type, info.message, permanent=info.permanent, category=info.category)


def why_not_started(error: Exception) -> ErrorInfo:
    """The facts of the error for which a call could not be started."""
    found = not is_a(error, BodyNotFound)
    kind = kind_name(error) if found else "body_not_found"
    text = text_of(error)
    category: Category = "permanent"
    if is_a(error, OSError):
        text, category = getattr(error, "strerror", None) or text, category_of(error)
    return ErrorInfo(type=kind, message=text, permanent=not found, category=category)


def _masked(outcome: Outcome, mask: Mask) -> Outcome:
    error = outcome.error
    if error is not None:
        error = msgspec.structs.replace(
            error, message=mask.text(error.message), traceback=mask.text(error.traceback), type=mask.text(error.type)
        )
    value, tail = mask.value(outcome.value), mask.text(outcome.output_tail)
    return msgspec.structs.replace(outcome, value=value, error=error, output_tail=tail)


def _about(owner: str | None) -> dict[str, str | None]:
    """Return a notice's fields for the job, workstream or task with that id."""
    if owner is None:
        return {}
    job_id, run, _ = owner.partition("@")
    kind = "task" if "/" in owner else "workstream" if run else "job"
    return {"kind": kind, "entity_id": owner, "job_id": job_id}


def _owner_of(row: OutboxRow) -> dict[str, str | None]:
    """Return a notice's fields for the owner of a row. A machine has no job."""
    return _about(row.owner) if row.callback is None else {"kind": "machine", "entity_id": row.owner}


def _title(row: OutboxRow, hook: Hook) -> str:
    name = hook.run or (hook.command if isinstance(hook.command, str) else shlex.join(hook.command or ()))
    if row.callback is not None:
        return f"the {row.callback} callback `{name}` of machine {row.owner}"
    return f"the {row.event} hook `{name}` of {row.owner}"


def _said(error: ErrorInfo) -> str:
    """Write an error in one line. An error that a function raised has its type and place; a group has no one place."""
    if not error.traceback:
        return error.message
    frame = None if error.leaves else frame_of(error.traceback, error.type, error.message)
    where = "" if frame is None else f" ({Path(frame[0]).name}:{frame[1]} in {frame[2]})"
    return f"{error.type}: {error.message}{where}" if error.message else f"{error.type}{where}"
