"""Graceful cancelling: once what ran is gone, the cancel hooks run in their order, and then the entity ends.

| in `cancelling` | its timer | what happens then |
| --- | --- | --- |
| what ran is to stop | its grace | it is abandoned; its slot is free when its engine has given it up |
| a hook runs | the hook's limit, or the deadline of all hooks | the hook is told to stop; or all is dropped |
| a hook is to stop | `HOOK_GRACE`, or the deadline of all hooks | it is abandoned, the next runs; or all is dropped |

Rules
-----
- One hook runs at a time. One that failed, or took too long, is kept in the record, and the others still run; then the
  entity has failed. All well: it is cancelled.
- All hooks together have `cancel_timeout` seconds. When they are over, `cancel_force` ends it: what runs is killed,
  what had not run never will, and a notice names both.
- Hooks run at least once. After a crash all of them run again, from the first, with the time they had at first; so they
  do after a drain that stopped them.
- Nothing of this begins where a cancel is at once (nothing ran, or it was forced), nor where `cleanup_on_cancel` is
  off.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from ...machines import Event
from ..kernel.entity import Acting
from ..kernel.transaction import StopCall
from ..messages.inputs import CallEnded
from ..records.base import Cancellation
from ..spec.model import Hook
from ..spec.times import seconds
from .checks import CANCELLING, SAID, Checked, kept_waiting, still_to_be_told, unasked

HOOK_GRACE = 6.0
"""Seconds that a hook has to be gone once it was told to stop: those that its engine gives it, and a margin."""


class Cancelled(Checked, Protocol):
    """An entity that can be cancelled in good order: what it says, and what it is told."""

    @property
    def cancel_hooks(self) -> Sequence[Hook]:
        """The hooks that are to run before it is cancelled."""
        ...

    @property
    def cancel_timeout(self) -> float:
        """Seconds that all of them have together."""
        ...

    def force_over(self, reason: str) -> None:
        """The deadline is over: end it by `cancel_force`. What of it still ran is stopped already."""
        ...

    def broken_off(self, error: str) -> Any:
        """Its record, with what its hooks say went wrong."""
        ...


def set_back_hooks(entity: Cancelled, by: float) -> None:
    """The wall clock was set back by so many seconds: the hooks have no longer for that."""
    if (cancel := entity.record.cancel) is not None and cancel.deadline is not None:
        entity.change(cancel=replace(cancel, deadline=cancel.deadline - by))


def run_hooks(entity: Cancelled) -> None:
    """What ran is gone, or was abandoned: run the hooks, if there are any, and end."""
    if not entity.cancel_hooks:
        _over(entity)
    elif entity.kernel.draining:
        unasked(entity)
    else:
        record = entity.record
        before = record.cancel or Cancellation()
        entity.change(cancel=replace(before, deadline=entity.kernel.at + entity.cancel_timeout, failed=[]))
        _run_hook(entity, 0)


def _run_hook(entity: Cancelled, index: int) -> None:
    hooks, cancel = entity.cancel_hooks, entity.record.cancel
    assert cancel is not None and cancel.deadline is not None  # noqa: S101, PT018 - set before the first hook
    if index == len(hooks):
        _over(entity)
        return
    entity.last_call = entity.kernel.begin_call("cancel_hook", entity.record.key, index=index)
    entity.change(cancel=replace(cancel, hook=index, token=entity.last_call, late=False))
    entity.wait_until(min(entity.kernel.at + seconds(hooks[index].timeout), cancel.deadline))


def hook_ended(entity: Cancelled, ended: CallEnded) -> None:
    """A cancel hook is over."""
    cancel: Cancellation | None = entity.record.cancel
    if entity.record.state != CANCELLING or cancel is None:
        return
    hook = entity.cancel_hooks[cancel.hook]
    if cancel.late:
        _hook_over(entity, f"it took longer than {seconds(hook.timeout):g} s and was stopped")
    elif entity.kernel.draining and ended.status not in SAID:
        unasked(entity)
    elif ended.status == "ok":
        _hook_over(entity, None)
    else:
        _hook_over(entity, ended.error or ended.status, ended)


def _hook_over(entity: Cancelled, error: str | None, ended: CallEnded | None = None) -> None:
    cancel: Cancellation | None = entity.record.cancel
    assert cancel is not None  # noqa: S101 - a hook has run
    if error is not None:
        title = hook_title(entity.cancel_hooks[cancel.hook])
        text = f"the cancel hook `{title}` of {entity.record.id} failed: {error}"
        facts = {"hook": "cancel", "error": error}
        if ended is not None and ended.traceback is not None:
            facts |= {"error_type": ended.error_type or "", "traceback": ended.traceback}
        entity.kernel.notice("hook_failed", "error", text, entity, **facts)
        entity.change(cancel=replace(cancel, failed=[*cancel.failed, f"cancel hook `{title}` failed: {error}"]))
    if entity.kernel.draining:
        unasked(entity)
    else:
        _run_hook(entity, cancel.hook + 1)


def _over(entity: Cancelled) -> None:
    """All hooks have run."""
    record = entity.record
    cancel = record.cancel
    reason = record.reason if cancel is None or cancel.left is None else f"{record.reason}; {cancel.left}"
    if cancel is not None and cancel.failed:
        error = "; ".join(cancel.failed)
        entity.fire(Event.FAIL, entity.broken_off(error), reason=f"{reason}; {error}")
    else:
        entity.fire(Event.COMPLETE, reason=reason)


def hooks_run(entity: Acting) -> bool:
    """Whether what it waits for in `cancelling` is a hook."""
    cancel: Cancellation | None = entity.record.cancel
    return cancel is not None and cancel.deadline is not None


def hook_due(entity: Cancelled) -> None:
    """A hook took too long, or all of them did."""
    cancel: Cancellation | None = entity.record.cancel
    now = entity.kernel.at
    assert cancel is not None and cancel.deadline is not None  # noqa: S101, PT018 - hooks run
    if late := kept_waiting(entity, entity.last_call):
        entity.change(cancel=replace(cancel, deadline=cancel.deadline + late))
        return
    if cancel.late and still_to_be_told(entity, entity.last_call, HOOK_GRACE):
        return
    if now >= cancel.deadline:
        entity.force_over(f"{entity.record.reason}; {drop_hooks(entity, 'the time for its cancel hooks was over')}")
    elif not cancel.late:
        entity.kernel.effect(StopCall(entity.last_call))
        entity.change(cancel=replace(cancel, late=True))
        entity.wait_until(min(now + HOOK_GRACE, cancel.deadline))
    else:
        limit = seconds(entity.cancel_hooks[cancel.hook].timeout)
        entity.kernel.stop_call(entity.last_call, force=True)
        entity.last_call = 0
        _hook_over(entity, f"it took longer than {limit:g} s, did not stop, and was abandoned")


def drop_hooks(entity: Cancelled, why: str) -> str:
    """Stop the hook that runs, and run none of those that are left. Returns what that was, and tells it."""
    cancel: Cancellation | None = entity.record.cancel
    assert cancel is not None  # noqa: S101 - hooks run
    entity.kernel.stop_call(entity.last_call, force=True)
    entity.last_call = 0
    titles = [hook_title(hook) for hook in entity.cancel_hooks[cancel.hook :]]
    text = f"{why}: `{titles[0]}` was abandoned"
    if len(titles) > 1:
        text = f"{text}, {', '.join(f'`{title}`' for title in titles[1:])} never ran"
    about = f"{entity.record.id}: {text}"
    entity.kernel.notice("hooks_abandoned", "warning", about, entity, abandoned=titles[:1], never_ran=titles[1:])
    return text


def hook_title(hook: Hook) -> str:
    """What a hook is called where people read of it."""
    if hook.run is not None:
        return str(hook.run)
    return hook.command if isinstance(hook.command, str) else shlex.join(hook.command or ())
