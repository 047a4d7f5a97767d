"""Lists that change while a person is about to press a button: the button acts on the row that was read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Locator, Page, expect

from .test_reviewing import held
from .theatre import Gate, Theatre
from .visitor import drawn, run_at, run_is, tab_to

Visit = Callable[..., Page]
TRUE = [{"name": "a", "command": ["true"]}]


def waiting(theatre: Theatre, name: str) -> Gate:
    """A run that goes on until its gate is opened."""
    gate = theatre.gate()
    job = theatre.submit(name, [{"name": "a", "command": ["sh", "-c", f"exec 3<>{gate}; read word <&3"]}])
    theatre.wait(job, "a", "running")
    return gate


def row(page: Page, name: str) -> Locator:
    """The row of the list that has this link."""
    return page.locator(".row", has=page.get_by_role("link", name=name, exact=True))


@contextmanager
def unmoved(it: Locator) -> Iterator[None]:
    """Check that an element has not moved, and that no other element covers it."""
    drawn(it.page)
    before = it.bounding_box()
    assert before is not None
    yield
    drawn(it.page)
    assert it.bounding_box() == before
    at = [before["x"] + before["width"] / 2, before["y"] + before["height"] / 2]
    assert it.evaluate("(it, [x, y]) => it.contains(document.elementFromPoint(x, y))", at)


def news(page: Page, words: str) -> Locator:
    """The button that loads the waiting news."""
    button = page.get_by_role("button", name=words, exact=True)
    expect(button).to_be_visible()
    return button


def test_rows_stay_under_the_pointer_and_go_on_when_it_has_left(theatre: Theatre, visit: Visit) -> None:
    gate = waiting(theatre, "aimed at")
    page = visit(f"{theatre.url}/#/runs")
    mine = row(page, "aimed at")
    expect(mine).to_contain_text("running")
    mine.hover()

    with unmoved(mine):
        for number in range(3):
            theatre.submit(f"newer {number}", TRUE)
        button = news(page, "3 new")
        gate.let()
        expect(mine).to_contain_text("completed")  # the content of the row changes
    expect(row(page, "newer 2")).to_have_count(0)

    button.click()
    expect(row(page, "newer 2")).to_be_visible()
    expect(button).to_have_count(0)
    mine.hover()
    with unmoved(mine):
        theatre.submit("last", TRUE)
        news(page, "1 new")
    page.mouse.move(0, 0)
    expect(row(page, "last")).to_be_visible()


def test_rows_stay_under_the_focus_and_the_keyboard_loads_what_is_new(theatre: Theatre, visit: Visit) -> None:
    theatre.submit("read aloud", TRUE)
    page = visit(f"{theatre.url}/#/runs")
    link = page.get_by_role("link", name="read aloud", exact=True)
    expect(link).to_be_visible()
    tab_to(page, link)

    with unmoved(link):
        theatre.submit("newer", TRUE)
        button = news(page, "1 new")
    button.focus()
    page.keyboard.press("Enter")

    expect(page.get_by_role("link", name="newer", exact=True)).to_be_focused()


def test_rows_stay_after_a_touch_until_something_else_is_touched(theatre: Theatre, visit: Visit) -> None:
    theatre.submit("touched", TRUE)
    page = visit(f"{theatre.url}/#/runs", has_touch=True)
    mine = row(page, "touched")
    expect(mine).to_be_visible()
    scrolls = ("pointerover", "pointerenter", "pointerdown", "pointercancel", "pointerleave")  # of a finger
    for event in scrolls:
        mine.dispatch_event(event, {"pointerType": "touch", "bubbles": event != "pointerenter"})

    with unmoved(mine):
        theatre.submit("after the touch", TRUE)
        news(page, "1 new")
    page.get_by_role("heading", level=1).tap()
    expect(row(page, "after the touch")).to_be_visible()


def test_a_filtered_row_stays_when_it_is_not_what_the_filter_asks_for_any_more(theatre: Theatre, visit: Visit) -> None:
    first, second = (waiting(theatre, name) for name in ("ends first", "ends second"))
    page = visit(f"{theatre.url}/#/runs?state=running")
    mine = row(page, "ends first")
    expect(row(page, "ends second")).to_be_visible()
    mine.hover()

    with unmoved(mine):
        second.let()
        button = news(page, "1 gone")
        expect(row(page, "ends second")).to_have_count(1)
    button.click()
    expect(row(page, "ends second")).to_have_count(0)
    first.let()


def test_cards_that_others_have_decided_stay_without_their_buttons(theatre: Theatre, visit: Visit) -> None:
    jobs = [held(theatre, name, people=2) for name in ("first", "second", "third")]
    page = visit(f"{theatre.url}/#/approvals")
    card = page.locator(".card", has=page.get_by_role("link", name="second", exact=True))
    expect(page.get_by_role("link", name="first", exact=True)).to_be_visible()
    card.hover()

    with unmoved(card):
        for by in ("ana", "bo"):  # the first decision makes the card longer, the second ends the wait
            theatre.post(f"/api/jobs/{jobs[0]}/tasks/first/approve", {"by": by})
        theatre.post(f"/api/jobs/{jobs[2]}/tasks/third/approve", {"by": "ana"})
        news(page, "1 gone")
        expect(page.get_by_role("main")).to_contain_text("It is not waiting any more.")
    expect(page.get_by_role("button", name="Approve first", exact=True)).to_have_count(0)
    page.mouse.move(0, 0)
    expect(page.get_by_role("link", name="first", exact=True)).to_have_count(0)


@pytest.mark.parametrize("shown", ["log", "tasks", "timeline"])
def test_the_lists_of_a_run_stay(theatre: Theatre, visit: Visit, shown: str) -> None:
    gates = [theatre.gate() for _ in range(2)]
    tasks = [
        {"name": name, "command": ["sh", "-c", f"exec 3<>{gate}; read word <&3; exit 3"], "optional": True}
        for name, gate in zip(("before", "aimed-at"), gates, strict=True)
    ]
    job = theatre.submit("listed", tasks)
    for each in tasks:
        theatre.wait(job, str(each["name"]), "running")
    page = visit(run_at(theatre.url, job, show=shown, **({} if shown == "log" else {"phase": "running"})))
    run_is(page, "running")
    rows = page.get_by_role("table").get_by_role("row")
    mine, other = (rows.filter(has=page.get_by_role("link", name=name)).first for name in ("aimed-at", "before"))
    expect(other).to_be_visible()
    mine.hover()
    text = mine.inner_text()

    with unmoved(mine):  # also when the line about a failure appears above the list
        gates[0].let()
        expect(page.get_by_role("button", name="new" if shown == "log" else "1 gone")).to_be_visible()
        expect(page.get_by_role("list", name="What needs somebody")).to_contain_text("before")
    assert shown != "log" or mine.inner_text() == text
