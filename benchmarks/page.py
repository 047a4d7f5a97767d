"""The loading time of the board's page in a browser, in seconds from the request, and its size in bytes as sent.

    python benchmarks/page.py [--quick]

A real `callboard serve` and the installed Chromium, over loopback; each load uses a profile with an empty cache, and
the best of several loads counts. It needs Playwright (`pip install -e '.[dev]'`).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from common import Figure, print_figures

sys.path.insert(0, str(Path(__file__).parent.parent))

from playwright.sync_api import Browser, Request
from tests.browser.chromium import launched
from tests.browser.test_many import layers
from tests.browser.theatre import Theatre
from tests.browser.visitor import run_at

PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
MANY = 20_000


def _load(browser: Browser, url: str, ready: str) -> tuple[float, float, int]:
    """Milliseconds to the first paint and to the expected element, and the bytes of all answers but the API's."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    sizes: list[int] = []

    def finished(request: Request) -> None:
        if "/api/" not in request.url:
            sizes.append(request.sizes()["responseBodySize"])

    page.on("requestfinished", finished)
    page.goto(url)
    page.locator(ready).first.wait_for()
    there: Any = page.evaluate("performance.now()")
    paint: Any = page.evaluate(PAINT)
    context.close()
    return float(paint), float(there), sum(sizes)


def figures(folder: Path, quick: bool) -> list[Figure]:
    """Load the runs, and a run of 20,000 tasks."""
    times = 2 if quick else 5
    (folder / "many.json").write_text(json.dumps(layers()))
    (folder / "steps.py").write_text("async def step(): pass\n")
    theatre = Theatre(folder, "--run", "many.json")
    theatre.start()
    try:
        with launched() as browser:
            runs = [_load(browser, f"{theatre.url}/#/runs", "[role=row] a") for _ in range(times)]
            job = theatre.jobs()[0]
            graphs = [_load(browser, run_at(theatre.url, job), ".graph .node") for _ in range(times)]
    finally:
        theatre.stop()
    paint, listed, weight = (min(column) for column in zip(*runs, strict=True))
    drawn, whole = min(load[1] for load in graphs), max(load[2] for load in graphs)
    return [
        Figure("first paint of the board", f"{paint / 1000:.2f} s", "1 s", paint < 1000),
        Figure("its runs are listed", f"{listed / 1000:.2f} s"),
        Figure(f"the graph of {MANY:,} tasks is drawn", f"{drawn / 1000:.2f} s"),
        Figure("what the first view weighs", f"{weight / 1000:.0f} kB"),
        Figure("and with a run's view", f"{whole / 1000:.0f} kB", "300 kB", whole < 300_000),
    ]


if __name__ == "__main__":
    print_figures(__doc__, figures)
