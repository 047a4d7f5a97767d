"""A run of 20,000 tasks on the page: it folds, draws only a part, and every task can be found and seen."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from playwright.sync_api import Page, expect

from .theatre import Theatre
from .visitor import go, run_at, there

Visit = Callable[..., Page]
LAYERS, EACH = 20, 1_000
NODES = 3_000
"""Elements of a page that shows any part of it."""


def layers() -> dict[str, object]:
    """A run in layers. Between the first layer and the others it waits for an approval."""
    tasks: list[dict[str, object]] = [
        {"name": "gate", "run": "steps:step", "hold": {"people": 1}, "depends_on": ["step-00-0000"]}
    ]
    for layer in range(LAYERS):
        for number in range(EACH):
            near = [f"step-{layer - 1:02}-{one:04}" for one in (number, (number + 1) % EACH)] if layer else []
            needs = [*near, "gate"] if layer == 1 else near
            tasks.append({"name": f"step-{layer:02}-{number:04}", "run": "steps:step", "depends_on": needs})
    return {"name": "many", "tasks": tasks}


def test_a_run_of_20000_tasks_stays_usable(another: Callable[..., Theatre], visit: Visit) -> None:
    theatre = another("--run", "many.json")
    (theatre.folder / "many.json").write_text(json.dumps(layers()))
    (theatre.folder / "steps.py").write_text("async def step(): pass\n")
    theatre.start()
    page = visit(theatre.url)
    expect(page.get_by_role("main")).to_contain_text("/20,001")
    page.get_by_role("link", name="many", exact=True).click()
    expect(page).to_have_url(re.compile("#/runs/."))
    there(page)
    job = page.url.rpartition("/")[2]

    for shown in ("graph", "timeline", "tasks", "log"):
        go(page, run_at(theatre.url, job, show=shown))
        assert page.evaluate("document.querySelectorAll('*').length") < NODES, shown

    page.goto(run_at(theatre.url, job))
    graph = page.get_by_role("region", name="Graph")
    expect(graph.get_by_role("button", name="1,000 tasks: 1,000 done")).to_have_count(1)
    expect(graph.get_by_role("button", name="1,000 tasks: none begun")).to_have_count(LAYERS - 1)
    graph.get_by_label("Find a task in the graph").fill("step-19-0777")
    page.keyboard.press("Enter")
    expect(graph.get_by_role("link", name="step-19-0777, pending")).to_be_visible()
    assert page.evaluate("document.querySelectorAll('*').length") < NODES
    assert theatre.path(job, "gate") == ["pending", "held"]
