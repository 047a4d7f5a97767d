"""A run that a person watches: its output, its retries, and the page while the server is away."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, Route, expect
from tests.waiting import wait_until

from .theatre import Theatre
from .visitor import confirm, log_is, run_at, run_is, task, task_is

Visit = Callable[..., Page]
TALL = {"width": 1280, "height": 3000}
"""The size of a window that shows the whole log."""


def test_the_output_of_a_command_is_followed_as_it_comes(theatre: Theatre, visit: Visit) -> None:
    gate = theatre.gate()
    script = f"exec 3<>{gate}; echo first line; read word <&3; echo second $word; read word <&3; echo third $word"
    job = theatre.submit("talking", [{"name": "talk", "command": ["sh", "-c", script]}])
    page = visit(run_at(theatre.url, job, task="talk"))

    shown = task(page, "talk").get_by_role("region", name="Output")
    expect(shown).to_contain_text("first line")
    expect(shown).not_to_contain_text("second")
    gate.let("<b>&amp;")
    expect(shown).to_contain_text("second <b>&amp;")
    gate.let("and last")
    expect(shown).to_contain_text("third and last")

    run_is(page, "completed")
    assert theatre.path(job, "talk")[-1] == "completed"


def test_a_retry_is_watched_from_its_failure_over_its_backoff_to_its_success(theatre: Theatre, visit: Visit) -> None:
    gate = theatre.gate()
    script = f'exec 3<>{gate}; read word <&3; echo heard $word; [ "$word" = good ]'
    flaky = {"name": "flaky", "command": ["sh", "-c", script], "retry": {"max_attempts": 3, "base_delay": "300ms"}}
    job = theatre.submit("patient", [flaky])
    page = visit(run_at(theatre.url, job, task="flaky"))
    task_is(page, "flaky", "running")

    gate.let("bad")
    attempts = task(page, "flaky").get_by_role("region", name="Attempts")
    expect(attempts).to_contain_text("failed")
    gate.let("good")

    run_is(page, "completed")
    path = theatre.path(job, "flaky")
    assert path == ["pending", "queued", "running", "retrying", "queued", "running", "validating", "completed"]


FLOW = """
from callboard import TaskContext, step

def passes(path):
    with open(path) as gate:
        return {"read": gate.readline().strip()}

async def charge(amount):
    raise OSError("the <b>bank</b> is closed")

async def order(task: TaskContext):
    await task.step(passes, task.args["gate"])
    try:
        await task.step(charge, 7)
    except OSError:
        await task.step(passes, task.args["gate"])
    await task.sleep("1h")
"""


COUNTS = """
from callboard import TaskContext

def writes(path, name):
    with open(path, "a") as file:
        file.write(name + "\\n")

async def count(task: TaskContext):
    for name in "abc":
        await task.step(writes, task.args["ran"], name)
"""


def test_a_task_that_takes_steps_opens_into_them_as_they_are_taken(theatre: Theatre, visit: Visit) -> None:
    gate = theatre.gate()
    (theatre.folder / "orders.py").write_text(FLOW)
    tasks = [{"name": "order", "run": "orders:order", "args": {"gate": str(gate)}}]
    job = theatre.submit("ordering", tasks, folder=str(theatre.folder))
    page = visit(run_at(theatre.url, job, task="order"))
    task_is(page, "order", "running")

    steps = task(page, "order").get_by_role("region", name="Steps", exact=True)
    expect(steps).to_have_count(0)
    gate.let("first")
    expect(steps.get_by_role("listitem")).to_have_count(2)  # steps come without a transition
    charged, passed = steps.get_by_role("listitem").all()
    expect(charged).to_contain_text("failed")
    expect(charged).to_contain_text("the <b>bank</b> is closed")
    expect(passed).to_contain_text("completed")
    expect(passed).not_to_contain_text("first")
    passed.get_by_text("What came of it").click()
    expect(passed.get_by_role("region", name="Result of passes")).to_contain_text('"read": "first"')
    expect(passed.get_by_role("region", name="Arguments of passes")).to_have_count(0)  # the arguments are folded
    passed.get_by_text("Arguments of passes").click()
    expect(passed.get_by_role("region", name="Arguments of passes")).to_contain_text(str(gate))
    charged.get_by_text("What came of it").click()
    expect(charged.get_by_role("region", name="Traceback of charge")).to_contain_text("in charge")

    gate.let("second")
    expect(steps.get_by_role("listitem")).to_have_count(4)
    expect(steps.get_by_role("listitem").nth(0)).to_contain_text(
        re.compile("waiting.*task.sleep.*until .* in 59 min", re.DOTALL)
    )
    expect(steps.get_by_role("listitem").nth(1)).to_contain_text("passes#2")
    expect(steps.get_by_role("region", name="Result of passes", exact=True)).to_be_visible()  # it stays open


def test_a_task_runs_again_from_a_step_by_the_button_at_it(theatre: Theatre, visit: Visit) -> None:
    (theatre.folder / "counting.py").write_text(COUNTS)
    ran = theatre.folder / "ran"
    tasks = [{"name": "count", "run": "counting:count", "args": {"ran": str(ran)}}]
    job = theatre.submit("counting", tasks, folder=str(theatre.folder))
    page = visit(run_at(theatre.url, job, task="count"))
    run_is(page, "completed")

    steps = task(page, "count").get_by_role("region", name="Steps", exact=True)
    expect(steps.get_by_role("button", name="Retry from here")).to_have_count(3)
    steps.get_by_role("button", name="Retry from here writes#2", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Retry from writes#2 on: count")
    expect(dialog).to_contain_text("The steps before it are kept.")
    confirm(dialog, "Retry", by="ana", reason="b was wrong")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("region", name="Results")).to_contain_text("will run again")
    wait_until(lambda: len(ran.read_text().split()) == 5, "the steps to run again")
    run_is(page, "completed")
    expect(steps.get_by_role("button", name="Retry from here")).to_have_count(3)
    assert ran.read_text().split() == ["a", "b", "c", "b", "c"]


def test_a_long_backoff_is_shown_with_the_time_that_is_left(theatre: Theatre, visit: Visit) -> None:
    stubborn = {
        "name": "stubborn",
        "command": ["false"],
        "retry": {"max_attempts": 3, "base_delay": "1h", "max_delay": "1h", "jitter": 0},
    }
    job = theatre.submit("stubborn run", [stubborn])
    page = visit(run_at(theatre.url, job, task="stubborn"))

    task_is(page, "stubborn", "retrying")
    expect(task(page, "stubborn")).to_contain_text("59 min")
    assert theatre.path(job, "stubborn")[-1] == "retrying"


def test_a_run_that_waits_says_until_when_in_the_zone_of_who_reads(theatre: Theatre, visit: Visit) -> None:
    held = theatre.submit("to be allowed", [{"name": "a", "command": ["true"]}], hold={"people": 1, "expires": "1h"})
    waits = theatre.submit("for later", [{"name": "a", "command": ["true"]}], wait="2h")
    for job, left in ((held, "59 min"), (waits, "1 h 59 min")):
        page = visit(run_at(theatre.url, job), timezone_id="Asia/Kolkata")
        standing = page.locator(".summary .standing")
        expect(standing).to_contain_text(re.compile(rf"until (\d+ \w+ )?\d\d:\d\d:\d\d (GMT\+5:30|IST), for {left}"))


def test_the_page_outlives_a_killed_server_and_misses_nothing(another: Callable[..., Theatre], visit: Visit) -> None:
    theatre = another("--allow-commands")
    theatre.start()
    gate = theatre.gate()
    tasks = [
        {"name": "before", "command": ["true"]},
        {"name": "during", "command": ["sh", "-c", f"exec 3<>{gate}; read word <&3"], "depends_on": ["before"]},
        {"name": "later", "command": ["true"], "depends_on": ["during"]},
    ]
    job = theatre.submit("lasting", tasks)
    page = visit(run_at(theatre.url, job, show="log"), viewport=TALL)
    page.evaluate("window.untouched = true")
    expect(page.get_by_role("main")).to_contain_text("during")
    expect(page.get_by_role("banner")).to_contain_text("Live")

    theatre.kill()

    stale = page.get_by_text("Stale since")
    expect(stale).to_be_visible()
    expect(page.get_by_role("main")).to_contain_text("during")  # the last known state is still shown
    theatre.start()
    expect(stale).to_be_hidden()
    expect(page.get_by_role("banner")).to_contain_text("Live")
    gate.let()
    run_is(page, "completed")
    assert page.evaluate("window.untouched"), "the page was loaded again"
    expect(page.get_by_text("transitions in all")).to_have_text(f"{len(theatre.steps(job))} transitions in all")
    log_is(page, [step.event for step in theatre.steps(job)])


@pytest.mark.parametrize("how", ["cut off", "refused for now"])
def test_a_read_that_fails_once_is_made_again_although_nothing_happens_any_more(
    theatre: Theatre, visit: Visit, how: str
) -> None:
    job = theatre.submit("over", [{"name": "build", "command": ["true"]}])
    theatre.wait(job, "build", "completed")
    page = visit(f"{theatre.url}/health/ready")

    def fail(route: Route) -> None:
        route.abort("connectionreset") if how == "cut off" else route.fulfill(status=503, json={"title": "Not now"})

    page.route("**/graph", fail, times=1)
    page.goto(run_at(theatre.url, job, task="build"))
    task_is(page, "build", "completed")
    expect(page.get_by_text("Not now")).to_have_count(0)


@pytest.mark.parametrize("what", ["graph", "events"])
def test_a_request_without_an_answer_is_given_up_and_made_again(theatre: Theatre, visit: Visit, what: str) -> None:
    job = theatre.submit("silent", [{"name": "build", "command": ["true"]}])
    theatre.wait(job, "build", "completed")
    page = visit(f"{theatre.url}/health/ready")
    page.clock.install()
    silent: list[Route] = []
    page.route(f"**/{what}", lambda route: silent.append(route), times=1)  # noqa: PLW0108 - it must be a function
    page.goto(run_at(theatre.url, job, task="build"))
    run_is(page, "completed")
    live = page.get_by_text("Live", exact=True)
    expect(
        page.get_by_text("Reading the tasks …") if what == "graph" else page.get_by_text("Connecting")
    ).to_be_visible()
    for _ in range(3):  # given up, then a pause
        page.clock.fast_forward(31_000)
    task_is(page, "build", "completed")
    expect(live).to_be_visible()
    assert len(silent) == 1
