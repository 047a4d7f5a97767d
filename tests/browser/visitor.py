"""What people do on the page, by the names and roles that a screen reader finds."""

from __future__ import annotations

from urllib.parse import urlencode

from playwright.sync_api import Locator, Page, expect


def run_at(url: str, job: str, **query: str) -> str:
    """The address of a run's view: show="log", task="build"."""
    return f"{url}/#/runs/{job}?{urlencode(query)}"


def run_is(page: Page, state: str) -> None:
    """Wait until the run that is shown is in a state."""
    expect(page.get_by_role("main").locator(".summary .standing")).to_contain_text(state)


def task_is(page: Page, name: str, state: str) -> None:
    """Wait until the task that is shown beside the run is in a state."""
    expect(task(page, name).locator(".standing")).to_contain_text(state)


def task(page: Page, name: str) -> Locator:
    """What is shown of a task beside the run."""
    return page.get_by_role("complementary", name=f"Task {name}", exact=True)


def there(page: Page) -> None:
    """Wait until a view is there with its data."""
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.locator(".loading")).to_have_count(0)


def logged(page: Page) -> list[str]:
    """The events that the log shows, the oldest first."""
    rows = page.get_by_role("table", name="Transitions, the newest first").get_by_role("row").all()
    return [row.get_by_role("cell").nth(2).inner_text().split(" try ")[0].replace(" ", "_") for row in rows[:0:-1]]


def ask(page: Page, verb: str, name: str) -> Locator:
    """Press the button of a verb; the dialog that asks for a reason."""
    page.get_by_role("button", name=f"{verb} {name}", exact=True).click()
    dialog = page.get_by_role("dialog", name=f"{verb} {name}", exact=True)
    expect(dialog).to_be_visible()
    return dialog


def confirm(dialog: Locator, verb: str, *, by: str, reason: str) -> None:
    """Say who and why, and press the dialog's own button."""
    dialog.get_by_label("Your name").fill(by)
    dialog.get_by_label("Reason").fill(reason)
    dialog.get_by_role("button", name=verb, exact=True).click()


def act(page: Page, verb: str, name: str, *, by: str, reason: str, force: bool = False) -> Locator:
    """Do it, and see that the page says what came of it; where it says that."""
    dialog = ask(page, verb, name)
    if force:
        dialog.get_by_label("By force").check()
    confirm(dialog, verb, by=by, reason=reason)
    expect(dialog).to_be_hidden()
    came = page.get_by_role("region", name="What came of it").get_by_role("listitem").filter(has_text=name)
    expect(came.first).to_be_visible()
    return came.first


def tab_to(page: Page, wanted: Locator) -> None:
    """Press Tab until something has the focus, as who has no mouse."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if wanted.evaluate("element => element === document.activeElement"):
            return
    raise AssertionError(f"the Tab key does not reach {wanted}")
