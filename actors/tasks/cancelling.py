"""Graceful cancelling: the running call stops, the cancel hooks run in order, and the entity ends.

| in `cancelling` | timer | when the timer fires |
| --- | --- | --- |
| the call must stop | its grace | it is abandoned; its slot is free when its engine has abandoned it |
| a hook runs | the hook's limit, or the deadline of all hooks | the hook is told to stop; or all hooks are dropped |
| a hook must stop | `HOOK_GRACE`, or the deadline of all hooks | it is abandoned, the next runs; or all are dropped |

Rules
-----
- One hook runs at a time. If a hook fails or takes too long, the record keeps that, and the other hooks still run; then
  the entity fails. If all hooks succeed, the entity is cancelled.
- All hooks together have `cancel_timeout` seconds. When that time is over, `cancel_force` ends the entity: the running
  hook is killed, the remaining hooks never run, and a notice names all of them.
- Hooks run at least once. After a crash, or a drain that stopped them, all hooks run again from the first, with the
  full time.
- No hook runs after an immediate cancel (no call ran, or the cancel was forced), nor if `cleanup_on_cancel` is off.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Any, Protocol

from msgspec.structs import replace

from ...machines import Event
from ..kernel.entity import EntityOperations
from ..kernel.transaction import StopCall
from ..messages.inputs import CallEnded
from ..records.base import Cancellation
from ..spec.model import Hook
from ..times import seconds
from .checks import CANCELLING, SAID, EntityWithChecks, kept_waiting, still_to_be_told, unasked

HOOK_GRACE = 6.0
"""Seconds that a hook has to end after it was told to stop: the grace of its engine, and a margin."""


class EntityWithHooks(EntityWithChecks, Protocol):
    """The part of an entity that graceful cancelling uses."""

    @property
    def cancel_hooks(self) -> Sequence[Hook]:
        """The hooks that run before the entity is cancelled."""
        ...

    @property
    def cancel_timeout(self) -> float:
        """Seconds that all cancel hooks have together."""
        ...

    def force_over(self, reason: str) -> None:
        """End the entity by `cancel_force`: the deadline is over. Its running call is stopped already."""
        ...

    def broken_off(self, error: str) -> Any:
        """The entity's record, with the errors of its cancel hooks."""
        ...


def set_back_hooks(entity: EntityWithHooks, by: float) -> None:
    """Set the deadline of the hooks back `by` seconds, as the wall clock was."""
    if (cancel := entity.record.cancel) is not None and cancel.deadline is not None:
        entity.change(cancel=replace(cancel, deadline=cancel.deadline - by))


def run_hooks(entity: EntityWithHooks) -> None:
    """Run the cancel hooks, if there are any, and end the entity. Its call has ended or was abandoned."""
    if not entity.cancel_hooks:
        _over(entity)
    elif entity.kernel.draining:
        unasked(entity)
    else:
        record = entity.record
        before = record.cancel or Cancellation()
        entity.change(cancel=replace(before, deadline=entity.kernel.at + entity.cancel_timeout, failed=[]))
        _run_hook(entity, 0)


def _run_hook(entity: EntityWithHooks, index: int) -> None:
    hooks, cancel = entity.cancel_hooks, entity.record.cancel
    assert cancel is not None and cancel.deadline is not None  # noqa: S101, PT018 - set before the first hook
    if index == len(hooks):
        _over(entity)
        return
    entity.last_call = entity.kernel.begin_call("cancel_hook", entity.record.key, index=index)
    entity.change(cancel=replace(cancel, hook=index, token=entity.last_call, late=False))
    entity.wait_until(min(entity.kernel.at + seconds(hooks[index].timeout), cancel.deadline))


def hook_ended(entity: EntityWithHooks, ended: CallEnded) -> None:
    """Receive the end of a cancel hook."""
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


def _hook_over(entity: EntityWithHooks, error: str | None, ended: CallEnded | None = None) -> None:
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


def _over(entity: EntityWithHooks) -> None:
    """End the entity after all hooks have run."""
    record = entity.record
    cancel = record.cancel
    reason = record.reason if cancel is None or cancel.left is None else f"{record.reason}; {cancel.left}"
    metadata = None if cancel is None else cancel.used or None
    if cancel is not None and cancel.failed:
        error = "; ".join(cancel.failed)
        entity.fire(Event.FAIL, entity.broken_off(error), reason=f"{reason}; {error}", metadata=metadata)
    else:
        entity.fire(Event.COMPLETE, reason=reason, metadata=metadata)


def hooks_run(entity: EntityOperations) -> bool:
    """Whether the entity in `cancelling` waits for a hook."""
    cancel: Cancellation | None = entity.record.cancel
    return cancel is not None and cancel.deadline is not None


def hook_due(entity: EntityWithHooks) -> None:
    """Handle the timer of a hook: one hook took too long, or all hooks together did."""
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


def drop_hooks(entity: EntityWithHooks, why: str) -> str:
    """Stop the running hook and skip the remaining ones, with a notice. Returns the notice's text about them."""
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
    """The name of a hook in texts for people: its function or command."""
    if hook.run is not None:
        return str(hook.run)
    return hook.command if isinstance(hook.command, str) else shlex.join(hook.command or ())
