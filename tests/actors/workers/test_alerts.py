"""Alerts: their content, receivers and frequency, and that none is lost in a crash."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.actors.stage import KernelHarness, fails, flow, task
from tests.actors.workers.test_breaker import TOOLS, use

from callboard.actors.messages.commands import TripBreaker
from callboard.actors.spec.model import Alert, Hook

PAGER = Alert(command=["page"])


def told(stage: KernelHarness) -> list[dict[str, Any]]:
    """Return the transitions that the alerts were given, with their commands."""
    return [
        msgspec.json.decode(row.context) | {"hook": msgspec.json.decode(row.body, type=Hook).command}
        for row in stage.hooks
        if row.event == "alert"
    ]


def texts(stage: KernelHarness) -> list[str]:
    return [alert["text"] for alert in told(stage)]


def failing(*alerts: Alert, count: int = 1, **more: Any) -> KernelHarness:
    """A stage on which so many optional tasks of a workstream with these alerts fail."""
    stage = KernelHarness(**more)
    stage.scripts |= {f"a{n}": fails(f"boom {n}") for n in range(count)}
    stage.submit(flow(*(task(f"a{n}", optional=True) for n in range(count)), alerts=list(alerts)))
    return stage


@pytest.mark.parametrize("whose", ["workstream", "runtime"])
def test_each_error_and_critical_transition_is_told(whose: str) -> None:
    stage = KernelHarness(alerts=(PAGER,) if whose == "runtime" else ())
    stage.scripts["a"] = fails()
    stage.submit(flow(task("a"), alerts=[PAGER] if whose == "workstream" else []))
    assert [(alert["severity"], alert["text"]) for alert in told(stage)] == [
        ("error", "task job@1/a failed: boom"),
        ("error", "workstream job@1 cancelling: task 'a' failed: boom"),
        ("critical", "workstream job@1 failed: task 'a' failed: boom"),
        ("error", "job job failed: task 'a' failed: boom"),
    ]
    first = told(stage)[0]
    assert first["hook"] == ["page"]
    assert (first["entity_id"], first["name"], first["state"], first["trigger"]) == ("job@1/a", "a", "failed", "fail")
    assert (first["job_id"], first["workstream_id"], first["attempt"], first["suppressed"]) == ("job", "job@1", 1, 0)


def test_it_never_changes_a_state_and_nobody_is_told_where_nobody_asked() -> None:
    assert failing(PAGER, count=3).kept.transitions == failing(count=3).kept.transitions
    assert failing(count=3).hooks == []


def test_the_runtimes_own_restart_is_no_trouble_of_its_workers() -> None:
    again = failing(PAGER, alerts=(PAGER,)).after_crash()
    restarted = [t for t in again.kept.transitions if t.kind == "worker" and t.reason == "runtime_restarted"]
    assert [t.severity for t in restarted] == ["error", "error"]
    assert not [text for text in texts(again) if "runtime_restarted" in text]


def test_only_critical_ones_where_that_is_asked_for() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = fails()
    stage.submit(flow(task("a"), alerts=[Alert(command=["page"], severity="critical")]))
    assert texts(stage) == ["workstream job@1 failed: task 'a' failed: boom"]


def test_so_many_per_period_and_the_next_one_says_how_many_were_not_told() -> None:
    stage = failing(Alert(command=["page"], max_alerts=2, period="1m"), count=7)
    assert texts(stage) == ["task job@1/a0 failed: boom 0", "task job@1/a1 failed: boom 1"]
    assert [notice.event for notice in stage.notices] == ["alert", "alert", "alert_suppressed"]


def test_what_was_suppressed_is_told_in_the_next_one_and_once() -> None:
    pager = Alert(command=["page"], max_alerts=1, period=60)
    stage = KernelHarness(alerts=(pager,))
    stage.scripts |= dict.fromkeys("abcde", fails())
    for name in "abc":
        stage.submit(flow(task(name, optional=True)), f"job-{name}")
    stage.advance(60)
    stage.submit(flow(task("d", optional=True)), "job-d")
    stage.advance(60)
    stage.submit(flow(task("e", optional=True)), "job-e")
    assert [(alert["name"], alert["suppressed"]) for alert in told(stage)] == [("a", 0), ("d", 2), ("e", 0)]


def test_a_storm_of_errors_does_not_silence_a_critical_one() -> None:
    stage = KernelHarness(alerts=(Alert(command=["page"], max_alerts=1, period=60),))
    stage.scripts |= {"a": fails(), "b": fails()}
    stage.submit(flow(task("a", optional=True), task("b")))
    assert [alert["severity"] for alert in told(stage)] == ["error", "critical"]


def test_alerts_of_one_do_not_count_for_another() -> None:
    one, two = Alert(command=["one"], max_alerts=1), Alert(command=["two"], max_alerts=2)
    stage = failing(one, two, count=4)
    assert sorted(alert["hook"][0] for alert in told(stage)) == ["one", "two", "two"]


def test_breakers_and_workers_are_the_runtimes_to_tell() -> None:
    stage = KernelHarness(alerts=(Alert(command=["runtime"]),))
    stage.scripts |= {"x": fails(), "y": fails()}
    stage.submit(flow(use("x"), use("y"), tools=TOOLS, alerts=[Alert(command=["stream"])]))
    stage.command(stage.workforce.breakers["t"], TripBreaker("by hand"))
    told_to = {name: [a["text"] for a in told(stage) if a["hook"] == [name]] for name in ("runtime", "stream")}
    assert told_to["stream"] == ["task job@1/x failed: boom", "task job@1/y failed: boom"]
    assert told_to["runtime"] == [*told_to["stream"], "breaker t open", "breaker t open: by hand"]


def test_an_alert_survives_a_crash_and_is_told_at_least_once() -> None:
    stage = KernelHarness()
    stage.hooks_hang = True
    stage.scripts["a"] = fails()
    stage.submit(flow(task("a", optional=True), alerts=[PAGER]))
    after = stage.after_crash()
    assert texts(after) == ["task job@1/a failed: boom"]
    assert [row.tries for row in after.hooks] == [1]
    assert after.after_crash().hooks == []  # the alert has run


def test_the_alert_commits_with_what_it_tells() -> None:
    stage = failing(PAGER)
    (turn,) = [turn for turn in stage.kept.turns if any(t.severity == "error" for t in turn.transitions)]
    assert [record.kind for record in turn.extra if record.kind == "outbox"] == ["outbox"]


def test_a_loaded_workstream_tells_too() -> None:
    stage = KernelHarness()
    stage.scripts["a"] = lambda call, entity: None
    stage.submit(flow(task("a", max_losses=0, optional=True), alerts=[PAGER]))
    assert texts(stage.after_crash()) == ["task job@1/a failed: runtime_restarted"]


def test_what_goes_wrong_with_an_alert_is_told_and_the_turn_goes_on() -> None:
    stage = KernelHarness(alerts=(PAGER,))
    stage.kernel.run_hook = broken  # type: ignore[method-assign]
    stage.scripts["a"] = fails()
    stage.submit(flow(task("a")))
    assert stage.state() == "failed"
    assert "an alert could not be made: RuntimeError('no')" in stage.reports


def broken(row: object) -> None:
    raise RuntimeError("no")
