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
from typing import Protocol

from ..kernel.entity import Acting
from ..messages.inputs import CallEnded
from ..records.base import CheckResult
from ..records.entities import WorkstreamRecord
from ..records.task import TaskRecord
from ..spec.model import Check
from ..spec.schema import clipped
from ..spec.times import seconds
from ..user_code import shown

VALIDATING, CANCELLING = "validating", "cancelling"
MAY_ASK = frozenset({"pending", VALIDATING, CANCELLING})
"""The states in which the command of a condition or a check may run, or be on its way out."""
SAID = frozenset({"ok", "failed"})
"""The ends of a call in which it said something itself; all others are about who ran it."""
_DESCRIBED = 300  # characters of what a check is
EARLY = 0.001
"""Seconds by which a timer may be early: what is due is kept in UTC, and fires by a clock that nobody sets."""


class Checked(Acting, Protocol):
    """An entity that is validated before it completes: what it says, and what it is told."""

    last_call: int
    """The token of the condition, check or hook that runs; 0 for none."""

    @property
    def checks(self) -> Sequence[Check]:
        """Its acceptance tests."""
        ...

    @property
    def check_limit(self) -> float:
        """Seconds that a check has which does not say so itself."""
        ...

    def passed(self) -> None:
        """Every check was met."""
        ...

    def not_passed(self, error: str, traceback: str | None = None) -> None:
        """A check was not met. traceback: of a function that raised."""
        ...

    def stopped(self) -> None:
        """It is being cancelled, and the check that ran is gone."""
        ...

    def validated(self) -> None:
        """The validation is over, whatever came of it."""
        ...


def ask(entity: Checked, kind: str, limit: float, index: int = 0) -> None:
    """Have a condition or a check run, for at most `limit` seconds."""
    entity.last_call = entity.kernel.begin_call(kind, entity.record.key, index=index)
    entity.wait_until(entity.kernel.at + limit)


def kept_waiting(entity: Acting, token: int) -> float:
    """Seconds that a call still has whose time is over, since its engine heard of it late; its timer is armed.

    A journal that could not be written is no fault of what was asked.
    """
    kernel = entity.kernel
    call = kernel.calls.get(token)
    late = 0.0 if call is None else kernel.late(token, kernel.port.monotonic()) - call.excused
    if call is None or late <= EARLY:
        return 0.0
    call.excused += late
    entity.wait_until(kernel.at + late)
    return late


def still_to_be_told(entity: Acting, token: int, grace: float) -> bool:
    """Whether an engine has not heard yet that it is to stop a call; then that has its grace still before it."""
    call = entity.kernel.calls.get(token)
    if call is None or call.told:
        return False
    entity.wait_until(entity.kernel.at + grace)
    return True


def unasked(entity: Acting) -> None:
    """A question was stopped: it has no limit until it is asked again."""
    entity.disarm()
    entity.change(due_at=None)


def validate(entity: Checked) -> None:
    """Run the checks, if there are any."""
    if entity.checks:
        _next_check(entity)
    else:
        entity.passed()


def _next_check(entity: Checked) -> None:
    if entity.kernel.draining:
        entity.validated()
        return
    index: int = entity.record.checked
    said = entity.checks[index].timeout
    ask(entity, "check", entity.check_limit if said is None else seconds(said), index)


def check_ended(entity: Checked, ended: CallEnded) -> None:
    """One check is over."""
    if entity.record.state == CANCELLING:
        entity.stopped()
    elif entity.record.state != VALIDATING:
        return
    elif entity.kernel.draining and ended.status not in SAID:
        unasked(entity)
    elif ended.status != "ok" or ended.value is False:
        error = ended.error or f"check {entity.record.checked + 1} was not met"
        _keep_result(entity, ended, error)
        entity.not_passed(error, ended.traceback)
    else:
        _keep_result(entity, ended)
        if entity.record.checked < len(entity.checks):
            _next_check(entity)
            return
        entity.passed()
    entity.validated()


def check_due(entity: Checked) -> None:
    """A check took too long."""
    if kept_waiting(entity, entity.last_call):
        return
    entity.kernel.stop_call(entity.last_call, force=True)
    entity.last_call = 0
    error = f"check {entity.record.checked + 1} took too long"
    _keep_result(entity, None, error)
    entity.not_passed(error)
    entity.validated()


def _keep_result(entity: Checked, ended: CallEnded | None, error: str | None = None) -> None:
    """Record what came of the check that is next; ended: None where it was stopped."""
    record: TaskRecord | WorkstreamRecord = entity.record
    passed = error is None
    result = CheckResult(
        check=described(entity.checks[record.checked]), passed=passed, error=error,
        exit_code=None if ended is None else ended.exit_code,
        duration_ms=None if ended is None or not ended.duration else round(ended.duration * 1000),
    )  # fmt: skip
    entity.kernel.tests[passed] += 1
    entity.change(checked=record.checked + passed, test_results=(*record.test_results, result))


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
