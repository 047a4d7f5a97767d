"""Notices: reports of events that are no transition, and of problems.

Rules
-----
- A notice goes to the event bus, which has the log. Above info it also goes into the journal (`kept_notices.py`) and to
  `on_trouble`, and to standard error if neither `on_trouble` nor the log took it. Secrets are masked before.
- Emitting a notice raises nothing. If the application's function raises, another notice reports that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from ...actors.messages.errors import FireFailed
from ...actors.messages.notices import Notice, Severity
from ...actors.user_code import called, is_a, message_of
from ...machines.keywords import number_of
from ..dispatch.actor_failures import ActorTrouble
from ..dispatch.dispatcher import Dispatcher
from ..text.logs import masked_notice
from ..text.secrets import Secrets
from ..text.tracebacks import traceback_of
from .events import EventBus
from .kept_notices import KeptNotices


class Notices:
    """The notices of one runtime."""

    def __init__(self, dispatcher: Dispatcher, hub: EventBus, secrets: Secrets) -> None:
        self.counts: Counter[str] = Counter()
        """The number of emitted notices, by their events."""
        self.on_trouble: Callable[[Notice], object] | None = None
        """The application's function, called with each notice above info."""
        self.heard: Callable[[Notice], object] = lambda _: None
        """Called with each notice first, before secrets are masked."""
        self.kept = KeptNotices(dispatcher.clock.monotonic)
        """The notices for the journal."""
        self._dispatcher = dispatcher
        self.hub = hub
        self.secrets = secrets
        dispatcher.reports.on_trouble = self.about_actor
        dispatcher.dead_letters.tell_broken(self.subscriber_broken)

    def notice(
        self,
        event: str,
        severity: Severity,
        text: str,
        *,
        kind: str = "runtime",
        entity_id: str | None = None,
        job_id: str | None = None,
        raised: Exception | None = None,
        **facts: Any,
    ) -> None:
        """Emit a notice of the runtime at once. Must be called on the loop. Raises nothing."""
        self.tell(
            Notice(
                event=event, severity=severity, text=text, at=self._dispatcher.clock.time(), kind=kind,
                entity_id=entity_id, job_id=job_id, facts=facts, error=raised,
            )
        )  # fmt: skip

    def tell_blocked(self, seconds: float, stack: str | None) -> None:
        """Report that the event loop did not turn for so many seconds."""
        where = "; what blocked it:\n" + stack if stack else "; what blocked it held the interpreter's lock"
        text = f"the event loop did not turn for {seconds:.2f} s or more{where}"
        self.notice("loop_blocked", "warning", text, seconds=round(seconds, 3), stack=stack)

    def about_actor(self, trouble: ActorTrouble) -> None:
        """Report the failure of a user's actor, and its result: a restart or a stop."""
        error, facts = trouble.error, {"actor": trouble.actor}
        if trouble.message is not None:
            facts["message"] = trouble.message
        if error is not None:
            facts["traceback"] = traceback_of(error)
        self.notice(
            trouble.event, trouble.severity, trouble.text, kind="actor", entity_id=trouble.actor,
            raised=error if isinstance(error, Exception) else None, **facts,
        )  # fmt: skip

    def subscriber_broken(self, error: Exception, times: int) -> None:
        """Report that a subscriber of dead letters has raised."""
        text = f"a subscriber of dead letters raised, {number_of(times, 'time')} in all: {message_of(error)}"
        self.notice("subscriber_failed", "error", text, raised=error, times=times, traceback=traceback_of(error))

    def log_failed(self, error: Exception, times: int) -> None:
        """Report that the application's log has raised, to all receivers except that log."""
        text = (
            f"the log that this program has configured raised, {number_of(times, 'time')} in all: {message_of(error)}"
        )
        notice = self._broken("log_failed", text, error, times=times)
        self.hub.tell_readers(notice)
        self._took(notice)

    def _broken(self, event: str, text: str, error: Exception, **facts: Any) -> Notice:
        """Make the notice about a function that was called with a notice, and raised."""
        self.counts[event] += 1
        notice = Notice(
            event=event, severity="error", text=text, at=self._dispatcher.clock.time(),
            facts={**facts, "traceback": traceback_of(error)}, error=error,
        )  # fmt: skip
        notice = notice if self.secrets.all is None else masked_notice(notice, self.secrets.all)
        self._keep(notice)
        return notice

    def tell(self, notice: Notice) -> None:
        """Emit a notice at once. Raises nothing."""
        self.heard(notice)
        self.counts[notice.event] += 1
        if notice.error is not None and notice.kind != "runtime" and "traceback" not in notice.facts:
            error = notice.error  # raised by the application's function, or by the machine because of this function
            by = error.__cause__ if is_a(error, FireFailed) else None
            traceback = traceback_of(error if by is None else by)
            notice = replace(notice, facts={**notice.facts, "traceback": traceback})
        mask = self.secrets.all
        if mask is not None:
            notice = masked_notice(notice, mask)
        if notice.severity != "info":
            self._keep(notice)
        logged = self.hub.tell_notice(notice, secret=mask is not None)
        if notice.severity != "info" and not self._took(notice) and not logged:
            self.hub.say_notice(notice)

    def _keep(self, notice: Notice) -> None:
        if self.kept.take(notice) and not self._dispatcher.closed:
            self._dispatcher.soon(_nothing)  # wakes the dispatcher: each slice hands appended rows to the journal

    def _took(self, notice: Notice) -> bool:
        """Whether `on_trouble` has handled the notice without raising."""
        if self.on_trouble is None:
            return False
        try:
            called(self.on_trouble, notice)
        except Exception as error:  # an error of the application's function must not break the runtime
            text = f"on_trouble raised at the notice {notice.event}: {message_of(error)}"
            broken = self._broken("on_trouble_failed", text, error)
            if not self.hub.tell_notice(broken, secret=self.secrets.all is not None):
                self.hub.say_notice(broken)
            return False
        return True


def _nothing() -> None:
    """Do nothing besides what each slice does."""
