"""Decisions of people in a browser: what the page shows, and the decision in the journal."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, Request, Route, expect

from .theatre import ROOT, Theatre
from .visitor import act, ask, confirm, run_at, run_is, tab_to, task, there

Visit = Callable[..., Page]


def held(theatre: Theatre, name: str, **hold: object) -> str:
    """A job whose only task, of this name, waits for an approval."""
    job = theatre.submit(f"{name} run", [{"name": name, "command": ["true"], "hold": {"people": 1, **hold}}])
    theatre.wait(job, name, "held")
    return job


def test_a_held_task_is_approved_among_the_approvals_and_goes_on(theatre: Theatre, visit: Visit) -> None:
    job = held(theatre, "publish")
    page = visit(f"{theatre.url}/#/approvals")

    came = act(page, "Approve", "publish", by="ana", reason="tests are green")

    expect(came).to_contain_text("approved")
    expect(page.get_by_role("button", name="Approve publish", exact=True)).to_have_count(0)
    page.goto(run_at(theatre.url, job))
    run_is(page, "completed")
    (approved,) = (step for step in theatre.steps(job, "publish") if step.event == "approve")
    assert (approved.by, approved.reason) == ("ana", "tests are green")
    assert theatre.path(job, "publish") == ["pending", "held", "queued", "running", "validating", "completed"]


def test_a_rejected_task_is_cancelled_and_the_reason_is_shown(theatre: Theatre, visit: Visit) -> None:
    job = held(theatre, "ship")
    page = visit(run_at(theatre.url, job, task="ship"))

    act(page, "Reject", "ship", by="bo", reason="not on a Friday")

    expect(task(page, "ship")).to_contain_text("not on a Friday")
    run_is(page, "failed")
    assert theatre.path(job, "ship") == ["pending", "held", "cancelled"]
    rejected = theatre.steps(job, "ship")[-1]
    assert (rejected.event, rejected.by) == ("reject", "bo")


def test_of_two_reviewers_at_once_the_second_is_told_what_the_first_has_done(theatre: Theatre, visit: Visit) -> None:
    job = held(theatre, "merge")
    ana, bo = (visit(f"{theatre.url}/#/approvals") for _ in range(2))
    approving = ask(ana, "Approve", "merge")
    rejecting = ask(bo, "Reject", "merge")  # both dialogs are open before either decision is sent

    confirm(approving, "Approve", by="ana", reason="good")
    expect(approving).to_be_hidden()
    theatre.wait(job, "merge", "completed")  # the second person is shown the state of that moment
    confirm(rejecting, "Reject", by="bo", reason="bad")

    expect(rejecting).to_contain_text("It has moved on")
    expect(rejecting).to_contain_text("completed")
    assert "reject" not in [step.event for step in theatre.steps(job)]
    assert theatre.path(job, "merge")[-1] == "completed"


def test_a_task_is_approved_without_a_mouse(theatre: Theatre, visit: Visit) -> None:
    job = held(theatre, "release")
    page = visit(theatre.url)
    keys = page.keyboard
    there(page)  # the first view keeps the focus: wait until it is not the next one

    keys.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    tab_to(page, page.get_by_role("link", name="Approvals"))
    keys.press("Enter")
    expect(page.get_by_role("heading", name="Approvals", level=1)).to_be_focused()
    tab_to(page, page.get_by_role("button", name="Approve release", exact=True))
    keys.press("Enter")
    dialog = page.get_by_role("dialog", name="Approve release", exact=True)
    expect(dialog.get_by_label("Reason")).to_be_focused()
    keys.type("by hand")
    keys.press("Shift+Tab")
    expect(dialog.get_by_label("Your name")).to_be_focused()
    keys.type("ana")
    keys.press("Enter")

    expect(dialog).to_be_hidden()
    expect(page.get_by_role("button", name="Approve release", exact=True)).to_have_count(0)
    expect(page.locator(":focus"), "the focus is lost").to_have_count(1)  # no element has the focus if `body` has it
    page.goto(run_at(theatre.url, job))
    run_is(page, "completed")
    (approved,) = (step for step in theatre.steps(job, "release") if step.event == "approve")
    assert (approved.by, approved.reason) == ("ana", "by hand")


def test_the_example_is_served_and_approved_by_its_two_reviewers(another: Callable[..., Theatre], visit: Visit) -> None:
    theatre = another("--run", str(ROOT / "examples/deploy.toml"))
    theatre.start()
    page = visit(theatre.url)
    row = page.get_by_role("table", name="Runs").get_by_role("row").filter(has_text="deploy")
    expect(row.get_by_role("progressbar")).to_have_attribute("aria-valuetext", "2 of 4 tasks ended and 1 waiting")
    row.get_by_role("link", name="deploy", exact=True).click()
    expect(page.get_by_role("heading", name="deploy", level=1)).to_be_visible()
    job = page.url.rpartition("/")[2].partition("?")[0]

    page.get_by_role("link", name="Approvals").click()
    expect(page.get_by_role("main")).to_contain_text("ana")
    act(page, "Approve", "deploy", by="ben", reason="looks good")
    expect(page.get_by_role("main")).to_contain_text("ben")  # one is not enough, and ana is missing still
    act(page, "Approve", "deploy", by="ana", reason="tests are green")

    page.goto(run_at(theatre.url, job))
    run_is(page, "completed")
    for name in ("build", "test", "deploy", "go-live"):
        assert theatre.path(job, name)[-1] == "completed"
    decided = [step.by for step in theatre.steps(job, "deploy") if step.event == "approve"]
    assert decided == ["ben", "ana"]


SECRET = "bo-0123456789abcdef"


def named(another: Callable[..., Theatre], folder: Path) -> Theatre:
    """A board that needs a token; its job waits for the approval of a person with another token."""
    file, tokens = folder / "named.toml", folder / "tokens.toml"
    file.write_text('name="named"\n[[tasks]]\nname="go"\ncommand=["true"]\nhold={clauses=[{person="cy"}]}\n')
    tokens.write_text(f'[[tokens]]\nname="bo"\nsecret="{SECRET}"\nscopes=["read", "approve"]\n')
    tokens.chmod(0o600)
    theatre = another("--run", str(file), "--tokens", str(tokens))
    theatre.start()
    return theatre


def enter(page: Page, secret: str) -> None:
    page.get_by_role("textbox", name="Token").fill(secret)
    page.keyboard.press("Enter")


def test_a_refusal_that_comes_late_says_nothing_against_the_token_that_was_entered_meanwhile(
    another: Callable[..., Theatre], visit: Visit, tmp_path: Path
) -> None:
    theatre = named(another, tmp_path)
    page = visit(f"{theatre.url}/#/workers")  # a view that does not ask for the runs
    late: list[Route] = []

    def nameless(request: Request) -> bool:
        return "/api/jobs?" in request.url and "authorization" not in request.headers

    page.route("**/api/jobs?*", lambda route: late.append(route) if nameless(route.request) else route.continue_())
    with page.expect_request(nameless) as asked:  # and only then is the token entered
        page.goto(f"{theatre.url}/#/runs")
    enter(page, SECRET)
    expect(page.get_by_title("You may only look and decide.")).to_be_visible()
    (refused,) = late
    with page.expect_response(lambda answer: answer.request == asked.value) as answered:
        refused.continue_()
    assert answered.value.status == 401

    expect(page.get_by_role("table", name="Runs").get_by_role("link", name="named", exact=True)).to_be_visible()
    expect(page.get_by_role("dialog", name="Token needed")).to_have_count(0)

    with page.expect_event("load"):
        page.get_by_role("button", name="Leave").click()
    enter(page, "bo-wrong-0123456789")
    expect(page.get_by_text("The server does not know this token.")).to_be_visible()


def test_a_task_says_to_whom_its_approval_is_not_and_why(
    another: Callable[..., Theatre], visit: Visit, tmp_path: Path
) -> None:
    page = visit(named(another, tmp_path).url)
    enter(page, SECRET)
    page.get_by_role("table", name="Runs").get_by_role("link", name="named", exact=True).click()
    page.get_by_role("link", name="Tasks", exact=True).click()
    page.get_by_role("main").get_by_role("link", name="go", exact=True).last.click()

    expect(task(page, "go")).to_contain_text("Not for you: Approve.")
    expect(task(page, "go").get_by_role("button", name="Reject go", exact=True)).to_be_visible()
    expect(task(page, "go").get_by_role("button", name="Approve go", exact=True)).to_have_count(0)
