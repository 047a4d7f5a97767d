"""Alerts: run the configured alert hooks for failures, up to a limit in each period.

Rules
-----
- Every turn is checked when it is over and before it is committed: each transition of severity error or critical is an
  alert for the runtime's `alerts`, and for those of its job's workstream. (A breaker or a worker serves many jobs: it
  concerns only the runtime's alerts.)
- An alert is a row of the outbox that commits with its transition: it is delivered at least once, also after a crash,
  and neither its success nor its failure changes a state.
- Each alert is delivered at most `max_alerts` times per `period`, counted separately for errors and for critical
  transitions, so that many errors do not suppress a critical alert. Alerts beyond that are counted; the next delivered
  one says how many. A restart resets the count and the period; suppressed transitions are in the journal, as all are.
- An error in this module is reported by a notice, and the turn goes on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from ..records.entities import OutboxRow
from ..records.transition import Transitioned, ended_with_runtime, iso
from ..spec.model import Alert, Hook, Workstream
from ..times import seconds
from ..user_code import shown
from .transaction import Transaction, folder_of

if TYPE_CHECKING:
    from .kernel import Kernel

ERROR, CRITICAL = "error", "critical"
LOUD = frozenset({ERROR, CRITICAL})
EVENT, SUPPRESSED = "alert", "alert_suppressed"


class LimitedAlert:
    """One alert, with its count for one severity in the present period."""

    __slots__ = ("alert", "began", "hook", "period", "sent", "suppressed")

    def __init__(self, alert: Alert) -> None:
        self.alert = alert
        hook = Hook(run=alert.run, command=alert.command, shell=alert.shell, timeout=alert.timeout)
        self.hook = msgspec.Raw(msgspec.json.encode(hook))
        self.period = seconds(alert.period)
        self.began = 0.0
        self.sent = 0
        self.suppressed = 0

    def admits(self, now: float) -> bool:
        """Count one alert. Returns whether it may be delivered."""
        if not self.began <= now < self.began + self.period:  # the clock may have been set back
            self.began, self.sent = now, 0
        if self.sent < self.alert.max_alerts:
            self.sent += 1
            return True
        self.suppressed += 1
        return False


class LimitedAlerts:
    """All alerts of a runtime or a workstream."""

    def __init__(self, alerts: Sequence[Alert]) -> None:
        self._of = {
            ERROR: [LimitedAlert(alert) for alert in alerts if alert.severity == ERROR],
            CRITICAL: [LimitedAlert(alert) for alert in alerts],
        }

    def of(self, severity: str) -> list[LimitedAlert]:
        """The alerts that receive transitions of this severity."""
        return self._of[severity]


class Alerter:
    """Makes the alerts of one kernel."""

    def __init__(self, kernel: Kernel, alerts: Sequence[Alert]) -> None:
        self.kernel = kernel
        self._own = LimitedAlerts(alerts)
        kernel.alerting = bool(alerts)

    def look(self, turn: Transaction) -> None:
        """Make the alerts for the failures of a turn. Raises nothing."""
        others, turn.effects = turn.effects, []  # alerts go first: the end of a job releases its functions
        try:
            for event in turn.transitions:
                if event.severity in LOUD:
                    for watch, spec in self._watches(event):
                        self._tell(watch, spec, event)
        except Exception as error:
            self.kernel.notice("alert_broken", "error", f"an alert could not be made: {shown(error)}")
        turn.effects += others

    def _watches(self, event: Transitioned) -> Iterator[tuple[LimitedAlert, Workstream | None]]:
        if ended_with_runtime(event):
            return  # such an event would use up the limit for real failures
        for watch in self._own.of(event.severity):
            yield watch, None
        job = None if event.job_id is None else self.kernel.jobs.get(event.job_id)
        watches = None if job is None else job.watches
        if job is not None and watches is not None and event.kind != "worker":
            for watch in watches.of(event.severity):
                yield watch, job.spec

    def _tell(self, watch: LimitedAlert, spec: Workstream | None, event: Transitioned) -> None:
        kernel = self.kernel
        text = f"{event.kind} {event.entity_id} {event.to_state}" + (f": {event.reason}" if event.reason else "")
        if not watch.admits(event.at):
            if watch.suppressed == 1:
                left = f"further ones are only counted for {watch.began + watch.period - event.at:.0f} s"
                kernel.notice(SUPPRESSED, "warning", f"an alert was suppressed, and {left}: {text}")
            return
        suppressed, watch.suppressed = watch.suppressed, 0
        kernel.notice(EVENT, "info", f"alert: {text}", about=event.entity_id, level=event.severity)
        context = {
            "event": EVENT, "text": text, "severity": event.severity, "kind": event.kind, "entity_id": event.entity_id,
            "name": event.entity_id.rpartition("/")[2], "from_state": event.from_state, "state": str(event.to_state),
            "trigger": str(event.event), "reason": event.reason, "at": iso(event.at), "job_id": event.job_id,
            "workstream_id": event.workstream_id, "attempt": event.attempt, "worker_id": event.worker_id,
            "suppressed": suppressed,
        }  # fmt: skip
        kernel.run_hook(
            OutboxRow(
                key=kernel.number(), at=kernel.at, owner=event.entity_id, event=EVENT, body=watch.hook,
                context=msgspec.Raw(msgspec.json.encode(context)), folder=None if spec is None else spec.folder,
                cwd=None if spec is None else folder_of(spec, None), env={} if spec is None else spec.env,
                secrets=[] if spec is None else spec.secrets,
            )
        )  # fmt: skip
