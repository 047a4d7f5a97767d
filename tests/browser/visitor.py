"""A person's actions on the page, by the names and roles that a screen reader finds."""

from __future__ import annotations

from urllib.parse import parse_qs, urlencode

from playwright.sync_api import Locator, Page, expect


def run_at(url: str, job: str, **query: str) -> str:
    """The address of a run's view: show="log", task="build"."""
    return f"{url}/#/runs/{job}?{urlencode(query)}"


def run_is(page: Page, state: str) -> None:
    """Wait until the shown run is in a state."""
    expect(page.get_by_role("main").locator(".summary .standing")).to_contain_text(state)


def task_is(page: Page, name: str, state: str) -> None:
    """Wait until the task that is shown beside the run is in a state."""
    expect(task(page, name).locator(".standing").first).to_contain_text(state)


def task(page: Page, name: str) -> Locator:
    """The part of the page that shows a task beside the run."""
    return page.get_by_role("complementary", name=f"Task {name}", exact=True)


def go(page: Page, url: str) -> None:
    """Go to a view, and wait until the page shows it with its data."""
    page.goto(url)
    path, _, query = url.partition("#/")[2].partition("?")
    place, _, run = path.partition("/")
    asked = {name: values[0] for name, values in parse_qs(query).items()}
    expect(page.locator(f'nav a[href="#/{place}"]')).to_have_attribute("aria-current", "page")
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    if run:
        show = asked.get("show", "graph")
        tab = page.get_by_role("navigation", name="Ways to see this run").get_by_text(show.capitalize(), exact=True)
        expect(tab).to_have_attribute("aria-current", "page")
    if "task" in asked:
        expect(task(page, asked["task"]).locator(".standing").first).to_be_visible()
    there(page)


def there(page: Page) -> None:
    """Wait until the page has loaded all data of the present view."""
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)
    expect(page.get_by_text("Reading …", exact=True)).to_have_count(0)  # the log shows this text while it loads


def drawn(page: Page) -> None:
    """Wait until the page has been painted in its present form: then elements are where people see them."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def log_is(page: Page, events: list[str]) -> None:
    """Wait until the log has as many lines as these events, and check that they are these, oldest first."""
    rows = page.get_by_role("table", name="Transitions, the newest first").get_by_role("row")
    expect(rows).to_have_count(len(events) + 1)
    lines = [row.get_by_role("cell").nth(2).inner_text() for row in rows.all()[:0:-1]]
    assert [line.split(" try ")[0].replace(" ", "_") for line in lines] == events


def ask(page: Page, verb: str, name: str) -> Locator:
    """Press the button of a verb; returns the dialog that asks for a reason."""
    page.get_by_role("button", name=f"{verb} {name}", exact=True).click()
    dialog = page.get_by_role("dialog", name=f"{verb} {name}", exact=True)
    expect(dialog).to_be_visible()
    return dialog


def confirm(dialog: Locator, verb: str, *, by: str, reason: str) -> None:
    """Enter a name and a reason, and press the dialog's own button."""
    dialog.get_by_label("Your name").fill(by)
    dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=verb, exact=True).click()


def act(page: Page, verb: str, name: str, *, by: str, reason: str, force: bool = False) -> Locator:
    """Make an action, and check that the page shows its result."""
    dialog = ask(page, verb, name)
    if force:
        dialog.get_by_label("By force").check()
    confirm(dialog, verb, by=by, reason=reason)
    expect(dialog).to_be_hidden()
    came = page.get_by_role("region", name="Results").get_by_role("listitem").filter(has_text=name)
    expect(came.first).to_be_visible()
    return came.first


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until an element has the focus, as a person without a mouse does."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"the Tab key does not reach {wanted}")
