"""Conditions and acceptance tests of tasks and workstreams: run one after the other, each with a limit.

Rules
-----
- One condition or check runs at a time; its token is `last_call`. A result under another token is stale.
- `record.checked` is the number of passed checks, and so the index of the next one; after a restart all run again.
- `record.test_results` has the result of each check that has ended in this attempt, in their order (document 003).
- A limit counts only the engine's time: the engine gets a call once it is durable, and the time before is added.
- While the runtime drains, no check starts and a stopped check has no result: it runs again after the restart.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Protocol

from ..kernel.entity import EntityOperations
from ..messages.inputs import CallEnded
from ..records.base import CheckResult
from ..records.entities import WorkstreamRecord
from ..records.task import TaskRecord
from ..spec.model import Check
from ..spec.schema import clipped
from ..times import seconds
from ..user_code import shown

VALIDATING, CANCELLING = "validating", "cancelling"
SAID = frozenset({"ok", "again", "failed"})
"""The ends that the call itself produced; all other ends come from its engine or worker."""
_DESCRIBED = 300  # most characters of a check's description
EARLY = 0.001
"""Seconds by which a timer may fire early: due times are kept in UTC, but the monotonic clock measures the wait."""


class EntityWithChecks(EntityOperations, Protocol):
    """The part of an entity that validation uses."""

    last_call: int
    """The token of the running condition, check or hook; 0 for none."""

    @property
    def checks(self) -> Sequence[Check]:
        """The entity's acceptance tests."""
        ...

    @property
    def check_limit(self) -> float:
        """Seconds that a check without a `timeout` has."""
        ...

    def passed(self) -> None:
        """Called when every check has passed."""
        ...

    def not_passed(self, error: str, traceback: str | None = None) -> None:
        """Called when a check has not passed. traceback: of a function that raised."""
        ...

    def stopped(self) -> None:
        """Called when the entity is being cancelled and its running check has ended."""
        ...

    def validated(self) -> None:
        """Called when the validation is over, with any result."""
        ...


def ask(entity: EntityWithChecks, kind: str, limit: float, index: int = 0) -> None:
    """Run a condition or a check, for at most `limit` seconds."""
    entity.last_call = entity.kernel.begin_call(kind, entity.record.key, index=index)
    entity.wait_until(entity.kernel.at + limit)


def kept_waiting(entity: EntityOperations, token: int) -> float:
    """Extend the limit of a call that reached its engine late. Returns the seconds added; its timer is armed.

    The call does not pay for the time in which the journal could not be written.
    """
    kernel = entity.kernel
    call = kernel.calls.get(token)
    late = 0.0 if call is None else kernel.late(token, kernel.port.monotonic()) - call.excused
    if call is None or late <= EARLY:
        return 0.0
    call.excused += late
    entity.wait_until(kernel.at + late)
    return late


def still_to_be_told(entity: EntityOperations, token: int, grace: float) -> bool:
    """Whether the order to stop a call has not reached its engine yet; if so, the grace begins again."""
    call = entity.kernel.calls.get(token)
    if call is None or call.told is not None:
        return False
    entity.wait_until(entity.kernel.at + grace)
    return True


def unasked(entity: EntityOperations) -> None:
    """Drop the limit of a stopped condition, check or hook until it runs again."""
    entity.disarm()
    entity.change(due_at=None)


def validate(entity: EntityWithChecks) -> None:
    """Run the checks, if there are any."""
    if entity.checks:
        _next_check(entity)
    else:
        entity.passed()


def _next_check(entity: EntityWithChecks) -> None:
    if entity.kernel.draining:
        entity.validated()
        return
    index: int = entity.record.checked
    said = entity.checks[index].timeout
    ask(entity, "check", entity.check_limit if said is None else seconds(said), index)


def check_ended(entity: EntityWithChecks, ended: CallEnded) -> None:
    """Receive the end of a check."""
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


def check_due(entity: EntityWithChecks) -> None:
    """Stop a check that took too long; it counts as not passed."""
    if kept_waiting(entity, entity.last_call):
        return
    entity.kernel.stop_call(entity.last_call, force=True)
    entity.last_call = 0
    error = f"check {entity.record.checked + 1} took too long"
    _keep_result(entity, None, error)
    entity.not_passed(error)
    entity.validated()


def _keep_result(entity: EntityWithChecks, ended: CallEnded | None, error: str | None = None) -> None:
    """Record the result of the current check. ended: None if the check was stopped."""
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
    """The metadata of a failure's transition: the traceback, if a function raised."""
    return None if traceback is None else {"traceback": traceback}


def described(check: Check) -> str:
    """A check in one line: "file dist/app.whl", "pytest -q", "imports app", "checks:is_signed"."""
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
