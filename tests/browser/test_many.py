"""A run of 20,000 tasks on the page: it folds, it keeps what it draws small, and every task can be found and seen."""

from __future__ import annotations

import json
from collections.abc import Callable

from playwright.sync_api import Page, expect

from .theatre import Theatre
from .visitor import act, run_at, there

Visit = Callable[..., Page]
LAYERS, EACH = 20, 1_000
NODES = 3_000
"""Elements of a page that shows any part of it."""


def layers() -> dict[str, object]:
    """A run in layers; the second one waits for somebody."""
    tasks: list[dict[str, object]] = []
    for layer in range(LAYERS):
        for number in range(EACH):
            task: dict[str, object] = {"name": f"step-{layer:02}-{number:04}", "run": "steps:step"}
            if layer:
                near = (number + 1) % EACH
                task["depends_on"] = [f"step-{layer - 1:02}-{one:04}" for one in sorted({number, near})]
            tasks.append(task)
    gate = {"name": "gate", "run": "steps:step", "hold": {"people": 1}, "depends_on": [f"step-00-{EACH // 2:04}"]}
    tasks[EACH]["depends_on"] = [*tasks[EACH]["depends_on"], "gate"]  # type: ignore[misc]
    return {"name": "many", "tasks": [*tasks, gate]}


def test_a_run_of_20000_tasks_stays_usable(another: Callable[..., Theatre], visit: Visit) -> None:
    theatre = another("--run", "many.json")
    (theatre.folder / "many.json").write_text(json.dumps(layers()))
    (theatre.folder / "steps.py").write_text("async def step(): pass\n")
    theatre.start()
    page = visit(theatre.url)
    expect(page.get_by_role("main")).to_contain_text("/20,001")
    page.get_by_role("link", name="many", exact=True).click()
    there(page)
    job = page.url.rpartition("/")[2]

    for shown in ("graph", "timeline", "tasks", "log"):
        page.goto(run_at(theatre.url, job, show=shown))
        there(page)
        assert page.evaluate("document.querySelectorAll('*').length") < NODES, shown

    page.goto(f"{theatre.url}/#/approvals")
    act(page, "Approve", "gate", by="ana", reason="go on")
