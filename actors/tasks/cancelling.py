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

from msgspec.structs import replace

from ...machines import Event
from ..kernel.transaction import StopCall
from ..messages.inputs import CallEnded
from ..records.base import Cancellation
from ..spec.model import Hook
from ..spec.times import seconds
from .checks import CANCELLING, SAID, CheckedEntity, CheckedRecord

HOOK_GRACE = 6.0
"""Seconds that a hook has to be gone once it was told to stop: those that its engine gives it, and a margin."""


class CancellableEntity(CheckedEntity[CheckedRecord]):
    """An entity that can be cancelled in good order."""

    __slots__ = ()

    # -- what a subclass says ------------------------------------------------------------------------------------------

    @property
    def cancel_hooks(self) -> Sequence[Hook]:
        """The hooks that are to run before it is cancelled."""
        raise NotImplementedError

    @property
    def cancel_timeout(self) -> float:
        """Seconds that all of them have together."""
        raise NotImplementedError

    def set_back(self, by: float) -> None:
        """The wall clock was set back by so many seconds."""
        super().set_back(by)
        if (cancel := self.record.cancel) is not None and cancel.deadline is not None:
            self.change(cancel=replace(cancel, deadline=cancel.deadline - by))

    def force_over(self, reason: str) -> None:
        """The deadline is over: end it by `cancel_force`. What of it still ran is stopped already."""
        raise NotImplementedError

    # -- the hooks, one after the other --------------------------------------------------------------------------------

    def stopped(self) -> None:
        """What ran is gone, or was abandoned: run the hooks, if there are any, and end."""
        if not self.cancel_hooks:
            self._over()
        elif self.kernel.draining:
            self.unasked()
        else:
            record = self.record
            before = record.cancel or Cancellation()
            self.change(cancel=replace(before, deadline=self.kernel.at + self.cancel_timeout, failed=[]))
            self._run_hook(0)

    def _run_hook(self, index: int) -> None:
        hooks, cancel = self.cancel_hooks, self.record.cancel
        assert cancel is not None and cancel.deadline is not None  # noqa: S101, PT018 - set before the first hook
        if index == len(hooks):
            self._over()
            return
        self.last_call = self.kernel.begin_call("cancel_hook", self.record.key, index=index)
        self.change(cancel=replace(cancel, hook=index, token=self.last_call, late=False))
        self.wait_until(min(self.kernel.at + seconds(hooks[index].timeout), cancel.deadline))

    def hook_ended(self, ended: CallEnded) -> None:
        """A cancel hook is over."""
        cancel = self.record.cancel
        if self.record.state != CANCELLING or cancel is None:
            return
        hook = self.cancel_hooks[cancel.hook]
        if cancel.late:
            self._hook_over(f"it took longer than {seconds(hook.timeout):g} s and was stopped")
        elif self.kernel.draining and ended.status not in SAID:
            self.unasked()
        elif ended.status == "ok":
            self._hook_over(None)
        else:
            self._hook_over(ended.error or ended.status, ended)

    def _hook_over(self, error: str | None, ended: CallEnded | None = None) -> None:
        cancel = self.record.cancel
        assert cancel is not None  # noqa: S101 - a hook has run
        if error is not None:
            title = hook_title(self.cancel_hooks[cancel.hook])
            text = f"the cancel hook `{title}` of {self.record.id} failed: {error}"
            facts = {"hook": "cancel", "error": error}
            if ended is not None and ended.traceback is not None:
                facts |= {"error_type": ended.error_type or "", "traceback": ended.traceback}
            self.kernel.notice("hook_failed", "error", text, self, **facts)
            self.change(cancel=replace(cancel, failed=[*cancel.failed, f"cancel hook `{title}` failed: {error}"]))
        if self.kernel.draining:
            self.unasked()
        else:
            self._run_hook(cancel.hook + 1)

    def _over(self) -> None:
        """All hooks have run."""
        record = self.record
        cancel = record.cancel
        reason = record.reason if cancel is None or cancel.left is None else f"{record.reason}; {cancel.left}"
        if cancel is not None and cancel.failed:
            error = "; ".join(cancel.failed)
            self.fire(Event.FAIL, self.broken_off(error), reason=f"{reason}; {error}")
        else:
            self.fire(Event.COMPLETE, reason=reason)

    def broken_off(self, error: str) -> CheckedRecord:
        """Its record, with what its hooks say went wrong."""
        raise NotImplementedError

    # -- time ----------------------------------------------------------------------------------------------------------

    @property
    def hooks_run(self) -> bool:
        """Whether what it waits for in `cancelling` is a hook."""
        cancel = self.record.cancel
        return cancel is not None and cancel.deadline is not None

    def due_hook(self) -> None:
        """A hook took too long, or all of them did."""
        cancel, now = self.record.cancel, self.kernel.at
        assert cancel is not None and cancel.deadline is not None  # noqa: S101, PT018 - hooks run
        if late := self.kept_waiting(self.last_call):
            self.change(cancel=replace(cancel, deadline=cancel.deadline + late))
            return
        if cancel.late and self.still_to_be_told(self.last_call, HOOK_GRACE):
            return
        if now >= cancel.deadline:
            self.force_over(f"{self.record.reason}; {self.drop_hooks('the time for its cancel hooks was over')}")
        elif not cancel.late:
            self.kernel.effect(StopCall(self.last_call))
            self.change(cancel=replace(cancel, late=True))
            self.wait_until(min(now + HOOK_GRACE, cancel.deadline))
        else:
            limit = seconds(self.cancel_hooks[cancel.hook].timeout)
            self.kernel.stop_call(self.last_call, force=True)
            self.last_call = 0
            self._hook_over(f"it took longer than {limit:g} s, did not stop, and was abandoned")

    def drop_hooks(self, why: str) -> str:
        """Stop the hook that runs, and run none of those that are left. Returns what that was, and tells it."""
        cancel = self.record.cancel
        assert cancel is not None  # noqa: S101 - hooks run
        self.kernel.stop_call(self.last_call, force=True)
        self.last_call = 0
        titles = [hook_title(hook) for hook in self.cancel_hooks[cancel.hook :]]
        text = f"{why}: `{titles[0]}` was abandoned"
        if len(titles) > 1:
            text = f"{text}, {', '.join(f'`{title}`' for title in titles[1:])} never ran"
        about = f"{self.record.id}: {text}"
        self.kernel.notice("hooks_abandoned", "warning", about, self, abandoned=titles[:1], never_ran=titles[1:])
        return text


def hook_title(hook: Hook) -> str:
    """What a hook is called where people read of it."""
    if hook.run is not None:
        return str(hook.run)
    return hook.command if isinstance(hook.command, str) else shlex.join(hook.command or ())
