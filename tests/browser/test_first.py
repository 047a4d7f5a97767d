"""What somebody sees who opens the board for the first time."""

from __future__ import annotations

from collections.abc import Callable

from playwright.sync_api import Page, expect

from .theatre import ROOT, Theatre


def test_a_file_that_is_served_is_among_the_runs_with_its_progress(
    another: Callable[..., Theatre], visit: Callable[..., Page]
) -> None:
    theatre = another("--run", str(ROOT / "examples/deploy.toml"))
    theatre.start()

    page = visit(theatre.url)

    row = page.get_by_role("table", name="Runs").get_by_role("row").filter(has_text="deploy")
    expect(row.get_by_role("progressbar")).to_have_attribute("aria-valuetext", "2 of 4 tasks ended and 1 waiting")
    expect(page).to_have_title("Runs · Callboard")
    (job,) = theatre.jobs()
    assert theatre.path(job, "deploy") == ["pending", "held"]
