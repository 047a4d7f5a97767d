"""Rules for every view: names are text, a phone is wide enough, it is accessible, and it is small."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from .theatre import Theatre
from .visitor import ask, confirm, go, run_at, task

Visit = Callable[..., Page]
LIGHT = 300_000
"""Bytes of the whole page with all its views, as they are sent."""
SIZES = """Object.fromEntries(performance.getEntries()
    .filter((one) => "encodedBodySize" in one && !one.name.includes("/api/"))
    .map((one) => [one.name, one.encodedBodySize]))"""
PHONE = {"width": 390, "height": 844}
LEVELS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
AXE = """async (runOnly) => (await axe.run({runOnly, resultTypes: ["violations"]})).violations
    .flatMap((rule) => rule.nodes.map((node) => `${rule.help}: ${node.html} ${node.failureSummary}`))"""

MARKUP = "<img src=x onerror=alert(1)>"
TURNED = "\u202egpj.exe"  # a program that obeys the mark shows exe.jpg
NAME = "&lt;b&gt; 'q' %2F#x {{y}} ${z} \u05e9\u05dc\u05d5\u05dd"

STATES = {"done": "completed", "works": "running", "asks": "held", "waits": "waiting"}
"""The states in which tasks of `varied` stay; tasks of the printer stay elsewhere once its breaker has opened."""


@pytest.fixture
def varied(theatre: Theatre) -> tuple[Theatre, str]:
    """A run with a task in most of the states that one sees."""
    gate = theatre.gate()
    at_it = f"echo at it; exec 3<>{gate}; read word <&3"
    later = {"max_attempts": 3, "base_delay": "1h", "max_delay": "1h"}
    tasks: list[dict[str, Any]] = [
        {"name": "done", "command": ["sh", "-c", "echo all is well"], "on_completed": [{"command": ["false"]}]},
        {"name": "works", "command": ["sh", "-c", at_it], "depends_on": ["done"]},
        {"name": "asks", "command": ["true"], "hold": {"clauses": [{"person": "ana"}]}, "depends_on": ["done"]},
        {"name": "waits", "command": ["true"], "wait": "1h", "depends_on": ["done"]},
        {"name": "broke", "command": ["sh", "-c", "echo oh no; exit 3"], "optional": True, "tool": "printer"},
        {"name": "tries", "command": ["false"], "retry": later, "tool": "printer"},
        {"name": "left", "command": ["true"], "depends_on": ["broke"], "optional": True},
        {"name": "to come", "command": ["true"], "depends_on": ["works", "asks"], "after": ["broke"]},
    ]
    job = theatre.submit("varied", tasks)
    for name, state in STATES.items():
        theatre.wait(job, name, state)
    return theatre, job


def views(theatre: Theatre, job: str) -> dict[str, str]:
    """The main views by name, with their addresses."""
    return {
        "runs": f"{theatre.url}/#/runs",
        "graph": run_at(theatre.url, job),
        "timeline": run_at(theatre.url, job, show="timeline"),
        "tasks": run_at(theatre.url, job, show="tasks"),
        "log": run_at(theatre.url, job, show="log"),
        "a task that failed": run_at(theatre.url, job, task="broke"),
        "a task that is held": run_at(theatre.url, job, task="asks"),
        "approvals": f"{theatre.url}/#/approvals",
        "workers": f"{theatre.url}/#/workers",
        "breakers": f"{theatre.url}/#/breakers",
    }


def test_names_reasons_people_and_output_are_text_whatever_they_hold(theatre: Theatre, visit: Visit) -> None:
    script = f"printf '%s\\n' '{MARKUP}' '{TURNED}'; exit 4"
    job = theatre.submit(
        NAME,
        [
            {"name": NAME, "command": ["sh", "-c", script], "optional": True},
            {"name": f"{NAME}2", "command": ["true"], "hold": {"clauses": [{"person": MARKUP}, {"person": "ana"}]}},
        ],
        by="<b>eve</b>",
    )
    page = visit(f"{theatre.url}/#/runs")
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))

    page.get_by_role("link", name=NAME, exact=True).click()
    expect(page.get_by_role("heading", level=1)).to_contain_text(NAME)
    page.goto(f"{theatre.url}/#/approvals")
    dialog = ask(page, "Approve", f"{NAME}2")
    confirm(dialog, "Approve", by=TURNED, reason=MARKUP)
    expect(dialog.get_by_role("alert")).to_contain_text("\\u202egpj.exe")  # a name must be printable
    confirm(dialog, "Approve", by=MARKUP, reason=f"{MARKUP} {TURNED}")
    expect(dialog).to_be_hidden()
    expect(page.get_by_role("main")).to_contain_text("<b>eve</b>")
    expect(page.get_by_role("main")).to_contain_text(MARKUP)
    for shown in ("graph", "timeline", "log", "tasks"):
        go(page, run_at(theatre.url, job, show=shown, task=NAME))
        said = task(page, NAME).get_by_role("region", name="Output")
        expect(said).to_contain_text(MARKUP)
        expect(said).to_contain_text("\\u202egpj.exe")

    assert page.locator("img").count() == 0
    (approved,) = (step for step in theatre.steps(job) if step.event == "approve")
    assert (approved.by, approved.reason) == (MARKUP, f"{MARKUP} {TURNED}")


def test_a_phone_shows_every_view_without_scrolling_sideways_and_loads_little(
    varied: tuple[Theatre, str], visit: Visit
) -> None:
    theatre, job = varied
    page = visit(theatre.url, viewport=PHONE, has_touch=True, is_mobile=True)
    wide = []
    for name, url in views(theatre, job).items():
        go(page, url)
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            wide.append(name)
    assert not wide
    sizes: dict[str, int] = page.evaluate(SIZES)
    assert len(sizes) > 10
    assert sum(sizes.values()) < LIGHT, sizes


def test_axe_finds_nothing_in_any_view_in_light_or_dark(varied: tuple[Theatre, str], visit: Visit) -> None:
    theatre, job = varied
    page = visit(theatre.url)
    page.evaluate(Axe().axe_script)  # stays there: from view to view the document is the same
    found = []
    for name, url in views(theatre, job).items():
        go(page, url)
        found += violations(page, name)
    ask(page, "Trip", "printer")
    found += violations(page, "a dialog")
    assert not found, "\n".join(found)


def violations(page: Page, name: str) -> list[str]:
    """The findings of axe about a view: by all rules in light mode, by those of colours in dark mode."""
    by_rules = page.evaluate(AXE, {"type": "tag", "values": LEVELS})
    page.emulate_media(color_scheme="dark")
    by_colours = page.evaluate(AXE, ["color-contrast"])
    page.emulate_media(color_scheme="light")
    return [f"{name}: {said}" for said in (*by_rules, *by_colours)]
