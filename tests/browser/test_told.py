"""Texts of people and results of checks on the page of a run, its tests and its workers."""

from __future__ import annotations

from collections.abc import Callable

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, ViewportSize, expect

from .test_manners import violations
from .theatre import Theatre
from .visitor import go, run_at, run_is, task, task_is

Visit = Callable[..., Page]
PHONE: ViewportSize = {"width": 390, "height": 844}
MARKUP = "<img src=x onerror=alert(1)> \u202e"
SHOWN = "<img src=x onerror=alert(1)> \\u202e"


def nobody_is_shut_out(page: Page) -> None:
    page.evaluate(Axe().axe_script)
    assert violations(page, page.url) == []


def test_what_came_of_the_acceptance_tests_of_a_task_and_of_a_run_is_shown(theatre: Theatre, visit: Visit) -> None:
    checks = [{"command": ["true", MARKUP]}, {"command": ["sh", "-c", "echo 'too old <b>'; exit 3"]}]
    job = theatre.submit("tested", [{"name": "build", "command": ["true"], "checks": checks}])
    page = visit(run_at(theatre.url, job, task="build"))
    task_is(page, "build", "failed")
    tests = task(page, "build").get_by_role("region", name="Acceptance tests")
    expect(tests).to_contain_text("1 of 2 tests not met")
    met, not_met = tests.get_by_role("listitem").all()
    expect(met).to_contain_text(SHOWN)
    expect(met).to_contain_text(" met (took")
    expect(not_met).to_contain_text("not met (exit code 3, took")
    assert page.locator("img").count() == 0
    nobody_is_shut_out(page)

    job = theatre.submit("tested whole", [{"name": "build", "command": ["true"]}], checks=[checks[0]])
    go(page, run_at(theatre.url, job))
    run_is(page, "completed")
    tests = page.locator(".summary").get_by_role("region", name="Acceptance tests")
    expect(tests).to_contain_text("1 test met")
    expect(tests.get_by_role("listitem")).to_contain_text(SHOWN)
    assert page.locator("img").count() == 0
    nobody_is_shut_out(page)


def test_what_a_run_is_for_is_shown_as_text_line_by_line(theatre: Theatre, visit: Visit) -> None:
    job = theatre.submit("described", [{"name": "a", "command": ["true"]}], description=f"Ships it.\n{MARKUP}")
    page = visit(run_at(theatre.url, job))
    said = page.locator(".summary").get_by_text("Ships it.")
    expect(said).to_contain_text(SHOWN)
    assert said.evaluate("(one) => one.clientHeight >= 2 * parseFloat(getComputedStyle(one).fontSize)")
    assert page.locator("img").count() == 0


def test_the_metadata_of_a_worker_are_shown_when_they_are_asked_for(
    another: Callable[..., Theatre], visit: Visit
) -> None:
    theatre = another()
    theatre.start()
    metadata = {"owner": MARKUP, "racks": [1, 2]}
    theatre.post("/api/workers", {"name": "noted", "engine": "loop", "metadata": metadata})
    page = visit(f"{theatre.url}/#/workers")
    row = page.get_by_role("row").filter(has_text="noted")
    expect(row.get_by_text("racks")).to_be_hidden()
    row.get_by_text("metadata (2)").click()
    expect(row.get_by_text("owner")).to_be_visible()
    expect(row.locator("dd").first).to_have_text(SHOWN)
    expect(row.locator("dd").last).to_have_text("[1,2]")
    assert page.locator("img").count() == 0
    nobody_is_shut_out(page)
    page.set_viewport_size(PHONE)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
