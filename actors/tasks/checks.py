"""What tasks and workstreams share: asking conditions and acceptance tests, one after the other, each with its limit.

Rules
-----
- One question is open at a time; its token is `last_call`. What comes back under another one is stale.
- `record.checked` counts the tests passed, so that it is known which is next; after a restart they are done again.
- `record.test_results` has what came of each that has ended in this attempt, in their order (document 003).
- The limit is on what an engine does: it does not hear of a question before that is durable, and so long it has time.
- While the runtime drains, nothing is asked and a stopped question says nothing: it is asked again after the restart.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TypeVar

from ..kernel.entity import Entity
from ..kernel.kernel import Kernel
from ..messages.inputs import CallEnded
from ..records.base import CheckResult
from ..records.entities import WorkstreamRecord
from ..records.task import TaskRecord
from ..spec.model import Check
from ..spec.schema import clipped
from ..spec.times import seconds
from ..user_code import shown

CheckedRecord = TypeVar("CheckedRecord", bound=TaskRecord | WorkstreamRecord)
VALIDATING, CANCELLING = "validating", "cancelling"
MAY_ASK = frozenset({"pending", VALIDATING, CANCELLING})
"""The states in which the command of a condition or a check may run, or be on its way out."""
SAID = frozenset({"ok", "failed"})
"""The ends of a call in which it said something itself; all others are about who ran it."""
_DESCRIBED = 300  # characters of what a check is
EARLY = 0.001
"""Seconds by which a timer may be early: what is due is kept in UTC, and fires by a clock that nobody sets."""


class CheckedEntity(Entity[CheckedRecord]):
    """An entity that is validated before it completes."""

    __slots__ = ("last_call",)

    def __init__(self, kernel: Kernel, record: CheckedRecord) -> None:
        super().__init__(kernel, record)
        self.last_call = 0  # token of the condition or check that runs

    # -- what a subclass says ------------------------------------------------------------------------------------------

    @property
    def checks(self) -> Sequence[Check]:
        """Its acceptance tests."""
        raise NotImplementedError

    @property
    def check_limit(self) -> float:
        """Seconds that a check has which does not say so itself."""
        raise NotImplementedError

    def passed(self) -> None:
        """Every check was met."""
        raise NotImplementedError

    def not_passed(self, error: str, traceback: str | None = None) -> None:
        """A check was not met. traceback: of a function that raised."""
        raise NotImplementedError

    def stopped(self) -> None:
        """It is being cancelled, and the check that ran is gone."""
        raise NotImplementedError

    def validated(self) -> None:
        """The validation is over, whatever came of it."""

    # -- asking --------------------------------------------------------------------------------------------------------

    def ask(self, kind: str, limit: float, index: int = 0) -> None:
        """Have a condition or a check run, for at most `limit` seconds."""
        self.last_call = self.kernel.begin_call(kind, self.record.key, index=index)
        self.wait_until(self.kernel.at + limit)

    def kept_waiting(self, token: int) -> float:
        """Seconds that a call still has whose time is over, since its engine heard of it late; its timer is armed.

        A journal that could not be written is no fault of what was asked.
        """
        kernel = self.kernel
        call = kernel.calls.get(token)
        late = 0.0 if call is None else kernel.late(token, kernel.port.monotonic()) - call.excused
        if call is None or late <= EARLY:
            return 0.0
        call.excused += late
        self.wait_until(kernel.at + late)
        return late

    def still_to_be_told(self, token: int, grace: float) -> bool:
        """Whether an engine has not heard yet that it is to stop a call; then that has its grace still before it."""
        call = self.kernel.calls.get(token)
        if call is None or call.told:
            return False
        self.wait_until(self.kernel.at + grace)
        return True

    def unasked(self) -> None:
        """A question was stopped: it has no limit until it is asked again."""
        self.disarm()
        self.change(due_at=None)

    def entered_validating(self) -> None:
        """Run the checks, if there are any."""
        if self.checks:
            self._next_check()
        else:
            self.passed()

    def _next_check(self) -> None:
        if self.kernel.draining:
            self.validated()
            return
        index = self.record.checked
        said = self.checks[index].timeout
        self.ask("check", self.check_limit if said is None else seconds(said), index)

    def check_ended(self, ended: CallEnded) -> None:
        """One check is over."""
        if self.record.state == CANCELLING:
            self.stopped()
        elif self.record.state != VALIDATING:
            return
        elif self.kernel.draining and ended.status not in SAID:
            self.unasked()
        elif ended.status != "ok" or ended.value is False:
            error = ended.error or f"check {self.record.checked + 1} was not met"
            self._keep_result(ended, error)
            self.not_passed(error, ended.traceback)
        else:
            self._keep_result(ended)
            if self.record.checked < len(self.checks):
                self._next_check()
                return
            self.passed()
        self.validated()

    def due_validating(self) -> None:
        """A check took too long."""
        if self.kept_waiting(self.last_call):
            return
        self.kernel.stop_call(self.last_call, force=True)
        self.last_call = 0
        error = f"check {self.record.checked + 1} took too long"
        self._keep_result(None, error)
        self.not_passed(error)
        self.validated()

    def _keep_result(self, ended: CallEnded | None, error: str | None = None) -> None:
        """Record what came of the check that is next; ended: None where it was stopped."""
        record, passed = self.record, error is None
        result = CheckResult(
            check=described(self.checks[record.checked]), passed=passed, error=error,
            exit_code=None if ended is None else ended.exit_code,
            duration_ms=None if ended is None or not ended.duration else round(ended.duration * 1000),
        )  # fmt: skip
        self.kernel.tests[passed] += 1
        self.change(checked=record.checked + passed, test_results=(*record.test_results, result))


def traced(traceback: str | None) -> dict[str, str] | None:
    """The metadata of a transition by which something failed that raised."""
    return None if traceback is None else {"traceback": traceback}


def described(check: Check) -> str:
    """What a check is, in a line: "file dist/app.whl", "pytest -q", "imports app", "checks:is_signed"."""
    named = {
        "file": check.file, "changed": check.changed, "imports": check.imports, "imports_js": check.imports_js,
    }  # fmt: skip
    for kind, value in named.items():
        if value is not None:
            return clipped(f"{kind} {value}", _DESCRIBED)
    if check.command is not None:
        text = check.command if isinstance(check.command, str) else shlex.join(check.command)
        return clipped(text, _DESCRIBED)
    return clipped(check.run if isinstance(check.run, str) else shown(check.run), _DESCRIBED)
