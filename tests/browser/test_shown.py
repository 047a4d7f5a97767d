"""The progress of running bodies, the text that they emit, and the values that they publish."""

from __future__ import annotations

import re
from collections.abc import Callable

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from .test_manners import violations
from .theatre import Theatre
from .visitor import go, run_at, run_is, task, task_is

Visit = Callable[..., Page]
BODY = """
from anyio import to_thread
from callboard import TaskContext

MARKUP = "<img src=x onerror=alert(1)> \\u202e"

def wait(path):
    with open(path) as gate:
        gate.readline()

async def tell(task: TaskContext):
    task.progress(3, 10, MARKUP)
    task.emit("Hello " + MARKUP + "\\x1b[31m red\\n")
    await task.publish("stage <b>", MARKUP)
    await task.publish("long", "first line\\nsecond line")
    await to_thread.run_sync(wait, task.args["gate"])
    task.progress(12, 10, "more than expected")
    task.emit("one word ")
    await to_thread.run_sync(wait, task.args["gate"])
    task.emit("and the last")

async def count(task: TaskContext):
    task.progress(1234)
    await to_thread.run_sync(wait, task.args["gate"])
"""
SHOWN = "<img src=x onerror=alert(1)> \\u202e"


def test_what_running_bodies_show_is_shown_as_it_comes_and_after_a_reload(theatre: Theatre, visit: Visit) -> None:
    gate, other = theatre.gate(), theatre.gate()
    (theatre.folder / "telling.py").write_text(BODY)
    tasks = [
        {"name": "tell", "run": "telling:tell", "args": {"gate": str(gate)}},
        {"name": "count", "run": "telling:count", "args": {"gate": str(other)}},
    ]
    job = theatre.submit("telling", tasks, folder=str(theatre.folder))
    page = visit(run_at(theatre.url, job, task="tell"))
    task_is(page, "tell", "running")

    shown = task(page, "tell")
    bar = shown.get_by_role("progressbar", name="Progress of tell", exact=True)
    expect(bar).to_have_attribute("aria-valuetext", f"3 of 10 (30 %), {SHOWN}")
    assert [bar.get_attribute(f"aria-value{one}") for one in ("min", "max", "now")] == ["0", "10", "3"]
    text = shown.get_by_role("region", name="Text", exact=True)
    expect(text).to_have_text(f"Hello {SHOWN} red")
    published = page.get_by_role("region", name="Published", exact=True)
    expect(published).to_contain_text("stage <b>")
    expect(published.locator("dd").first).to_contain_text(re.compile(rf"^{re.escape(SHOWN)} +by tell "))
    published.locator("summary").click()
    expect(published.get_by_role("region", name="Published as long")).to_have_text('"first line\\nsecond line"')
    expect(page.get_by_role("link", name="tell, running, 30 % done")).to_be_visible()  # of the graph
    page.evaluate(Axe().axe_script)
    assert violations(page, page.url) == []

    gate.let()
    expect(bar).to_have_attribute("aria-valuetext", "12 of 10 (100 %), more than expected")
    expect(bar).to_have_attribute("aria-valuenow", "10")
    expect(text).to_contain_text("one word")
    shown.get_by_role("button", name="Stop", exact=True).click()
    expect(shown.get_by_role("button", name="Follow", exact=True)).to_have_attribute("aria-pressed", "false")

    page.reload()
    go(page, run_at(theatre.url, job, task="tell", show="tasks"))
    expect(shown.locator(".reported")).to_contain_text("12 of 10 (100 %), more than expected")
    expect(text).to_contain_text("one word")
    rows = page.get_by_role("table", name="Tasks")
    expect(rows.get_by_role("progressbar", name="Progress of tell", exact=True)).to_have_count(1)
    expect(rows.get_by_role("row").filter(has_text="count")).to_contain_text("1,234")
    expect(rows.get_by_role("progressbar")).to_have_count(1)  # the total of the other task is unknown
    page.evaluate(Axe().axe_script)
    assert violations(page, page.url) == []

    gate.let()
    task_is(page, "tell", "completed")
    expect(text).to_have_text(re.compile(r"one word and the last$"))
    expect(shown).to_contain_text("the attempt is over")
    expect(page.get_by_role("progressbar", name="Progress of tell", exact=True)).to_have_count(0)
    assert page.locator("img").count() == 0
    other.let()
    run_is(page, "completed")
    expect(published).to_contain_text("stage <b>")
