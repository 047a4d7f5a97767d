"""Commands in a browser: the journal has what a button does, and the name of its user."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from .theatre import Theatre
from .visitor import act, run_at, run_is, task

Visit = Callable[..., Page]


def working(theatre: Theatre, name: str) -> str:
    """A job whose only task runs until it is stopped, prints `at it`, and is rolled back when it is cancelled."""
    gate = theatre.gate()
    script = f"trap '' TERM; exec 3<>{gate}; echo at it; read word <&3"
    undo = {"command": ["sh", "-c", "echo rolled back > $CALLBOARD_JOB.txt"]}
    digs = {"name": name, "command": ["sh", "-c", script], "kill_grace": "200ms", "cancel_hooks": [undo]}
    return theatre.submit(f"{name} run", [digs], cwd=str(theatre.folder))


def is_at_it(page: Page, name: str) -> None:
    """Wait until the command of the task has begun: a run may be running before any command of its tasks."""
    run_is(page, "running")
    expect(task(page, name).get_by_role("region", name="Output")).to_contain_text("at it")


def test_a_run_is_cancelled_in_good_order(theatre: Theatre, visit: Visit) -> None:
    job = working(theatre, "digging")
    page = visit(run_at(theatre.url, job, task="digging"))
    is_at_it(page, "digging")

    came = act(page, "Cancel", "digging run", by="op", reason="enough")

    expect(came).to_contain_text("is being cancelled")
    run_is(page, "cancelled")
    assert (theatre.folder / f"{job}.txt").read_text() == "rolled back\n"
    cancelled = next(step for step in theatre.steps(job) if step.event == "cancel_graceful")
    assert (cancelled.entity, cancelled.reason) == (job, "enough")
    assert theatre.path(job, "digging")[-2:] == ["cancelling", "cancelled"]


def test_a_run_is_cancelled_by_force_and_nothing_is_rolled_back(theatre: Theatre, visit: Visit) -> None:
    job = working(theatre, "drilling")
    page = visit(run_at(theatre.url, job, task="drilling"))
    is_at_it(page, "drilling")

    act(page, "Cancel", "drilling run", by="op", reason="at once", force=True)

    run_is(page, "cancelled")
    assert not (theatre.folder / f"{job}.txt").exists()
    assert theatre.path(job, "drilling")[-1] == "cancelled"
    assert "cancelling" not in theatre.path(job, "drilling")


WAITS = """
from callboard import TaskContext

async def order(task: TaskContext):
    return [await task.receive("payment", timeout="2h"), await task.receive("note")]
"""


def test_a_message_is_sent_to_a_body_that_waits_for_it(theatre: Theatre, visit: Visit) -> None:
    (theatre.folder / "waits.py").write_text(WAITS)
    job = theatre.submit("waiting", [{"name": "order", "run": "waits:order"}], folder=str(theatre.folder))
    page = visit(run_at(theatre.url, job, task="order"))
    steps = task(page, "order").get_by_role("region", name="Steps", exact=True)
    for name, typed in (("payment", '{"cents": 1200}'), ("note", "by hand")):
        waits = steps.get_by_role("listitem").filter(has_text=f"waits for the message {name}")
        waits.get_by_role("button", name="Send message").click()
        dialog = page.get_by_role("dialog")
        expect(dialog).to_contain_text(f"Send message {name} to")
        expect(dialog.get_by_label("Reason")).to_have_count(0)
        dialog.get_by_label("Value").fill(typed)
        dialog.get_by_role("button", name="Send message").click()
        expect(dialog).to_be_hidden()
    run_is(page, "completed")
    result = task(page, "order").get_by_role("region", name="Result", exact=True)
    expect(result).to_contain_text("1200")
    expect(result).to_contain_text("by hand")
