"""The limits of a task: task before tool before workstream before runtime, and the defaults."""

from __future__ import annotations

from typing import Any

import pytest

from callboard.actors.spec.limits import Limits, LimitsResolver, attempts, breaker_of
from callboard.actors.spec.model import ALLOWED, Allowed, Breaker, Defaults, Retry, Task, Tool, Workstream

ONE = Retry(max_attempts=2)
FIELDS = {
    "retry": ONE, "timeout": 7.0, "queue_timeout": 7.0, "heartbeat_timeout": 7.0, "total_timeout": 7.0,
    "unroutable_timeout": 7.0, "kill_grace": 7.0, "max_error_repeats": 7, "max_losses": 7, "on_loss": "park",
    "on_exhausted": "park",
}  # fmt: skip


def limits(task: dict[str, Any] | None = None, **sources: Any) -> Limits:
    spec = Workstream("w", defaults=sources.get("file", Defaults()), tools={"t": sources.get("tool", Tool())})
    return LimitsResolver(spec, sources.get("runtime", Defaults())).of(Task("a", run="m:f", tool="t", **(task or {})))


def test_the_usual_ones() -> None:
    assert limits() == Limits(
        retry=Retry(), allowed=ALLOWED, timeout=300.0, queue_timeout=None, heartbeat_timeout=None, total_timeout=None,
        unroutable_timeout=600.0, validation_timeout=30.0, kill_grace=10.0, recovery_timeout=60.0,
        max_error_repeats=None,
        cancel_timeout=30.0, cleanup_on_cancel=True,
        save_partial_output=True, checkpoint=True, checkpoint_on=None, park_cooldown=None, tries_passing=False,
    )  # fmt: skip
    assert Allowed(max_attempts=1, max_losses=3, on_loss="rerun", on_exhausted="fail") == ALLOWED
    assert LimitsResolver(Workstream("w"), Defaults()).of(Task("a", run="m:f")).tries_passing
    assert (Retry().base_delay, Retry().max_delay, Retry().jitter) == (2.0, 60.0, 0.25)
    assert breaker_of(None) == Breaker(failure_threshold=5, cooldown=60.0, success_threshold=1)


@pytest.mark.parametrize("field", FIELDS)
def test_each_is_taken_from_the_task_else_the_file_else_the_runtime(field: str) -> None:
    value = FIELDS[field]
    by_each = (
        ({field: value}, {}),
        ({}, {"file": Defaults(**{field: value})}),
        ({}, {"runtime": Defaults(**{field: value})}),
    )
    for task, sources in by_each:
        found = limits(task, **sources)
        assert getattr(found.allowed if hasattr(Allowed, field) else found, field) == value


def test_the_nearest_one_that_says_so_wins() -> None:
    sources = {
        "tool": Tool(timeout=2),
        "file": Defaults(timeout=3, queue_timeout=3),
        "runtime": Defaults(timeout=4, queue_timeout=4, total_timeout=4),
    }
    found = limits({"timeout": "1s"}, **sources)
    assert (found.timeout, found.queue_timeout, found.total_timeout) == (1.0, 3.0, 4.0)
    assert limits(**sources).timeout == 2.0


def test_nothing_said_and_zero_said_are_not_the_same() -> None:
    found = limits(
        {"max_losses": 0, "max_error_repeats": 0, "kill_grace": 0}, file=Defaults(max_losses=9, kill_grace=9)
    )
    assert (found.allowed.max_losses, found.max_error_repeats, found.kill_grace) == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("retry", "count"),
    [(None, 1), (Retry(), 5), (Retry(max_attempts=7), 7), (Retry(max_retries=0), 1), (Retry(max_retries=3), 4)],
)
def test_attempts(retry: Retry | None, count: int) -> None:
    assert attempts(retry) == count


def test_tasks_that_say_nothing_share_one_answer() -> None:
    resolver = LimitsResolver(Workstream("w"), Defaults())
    assert resolver.of(Task("a", run="m:f")) is resolver.of(Task("b", run="m:f"))
    assert resolver.of(Task("c", run="m:f", timeout=1)) is not resolver.of(Task("d", run="m:f"))
