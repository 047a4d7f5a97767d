"""A real browser and a real server: both are started once for all tests here, and each test has its own page.

Rules
-----
- Without a Chromium or without Playwright these tests are skipped, with the reason.
  `CALLBOARD_BROWSER=required` makes this an error, so that CI, which has both, cannot skip them silently.
- Every test also checks the page itself: it may report nothing to the console that the test did not expect, break no
  rule of its Content-Security-Policy, and send no request to another address.
- Playwright's own event loop runs in this thread as long as the browser. So this folder may have no async test,
  and the browser's fixture has the scope "package": it ends before the tests of other folders begin.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from .theatre import PATIENCE, Theatre

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PLAYWRIGHT = find_spec("playwright") is not None
HERE = Path(__file__).parent
WIDE = {"width": 1280, "height": 800}
BROKEN_RULES = "addEventListener('securitypolicyviolation', e => (window.brokenRules ??= []).push(e.violatedDirective))"
BY_DESIGN = ("Failed to load resource",)  # Chromium reports so an answer above 399, or none


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests on one Python version only."""
    here = f"{HERE}{os.sep}"
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.board)


class Without(pytest.Module):
    """A module of tests whose imports are missing here."""

    def collect(self) -> NoReturn:
        """Skip the module."""
        _without("playwright is not installed (pip install playwright)")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Skip a module whose imports are missing, with the reason."""
    return None if PLAYWRIGHT else Without.from_parent(parent, path=module_path)


def _without(what: str) -> NoReturn:
    if os.environ.get("CALLBOARD_BROWSER") == "required":
        pytest.fail(what)
    pytest.skip(what, allow_module_level=True)


@pytest.fixture(scope="package")
def chromium() -> Iterator[Browser]:
    """The browser."""
    from playwright.sync_api import expect

    from .chromium import Missing, launched

    expect.set_options(timeout=PATIENCE * 1000)
    try:
        with launched() as browser:
            yield browser
    except Missing as error:
        _without(str(error))


@pytest.fixture(scope="package")
def house(chromium: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    """The server that most tests share."""
    house = Theatre(tmp_path_factory.mktemp("theatre"), "--allow-commands")
    house.start()
    yield house
    house.stop()


@pytest.fixture
def theatre(house: Theatre) -> Iterator[Theatre]:
    """A server that accepts commands over HTTP; the jobs of a test are ended after it."""
    yield house
    house.clear()


@pytest.fixture
def another(chromium: Browser, tmp_path: Path) -> Iterator[Callable[..., Theatre]]:
    """Makes servers for one test alone, with the given options; they are not started."""
    made: list[Theatre] = []

    def make(*options: str) -> Theatre:
        folder = tmp_path / f"theatre-{len(made)}"
        folder.mkdir()
        made.append(Theatre(folder, *options))
        return made[-1]

    yield make
    for theatre in made:
        theatre.stop()


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Callable[..., Page]]:
    """Opens an address in a browser profile of its own, as another person would."""
    contexts: list[BrowserContext] = []
    watched: list[_Manners] = []

    def open_(url: str, **options: Any) -> Page:
        context = chromium.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **options})
        contexts.append(context)
        context.set_default_timeout(PATIENCE * 1000)
        context.add_init_script(BROKEN_RULES)
        page = context.new_page()
        watched.append(_Manners(page, url))
        page.goto(url)
        return page

    yield open_
    for manners in watched:
        manners.shown()
    told = [wrong for manners in watched for wrong in manners.broken()]
    for context in contexts:
        context.close()
    assert not told, "\n".join(told)


class _Manners:
    """The events of a page that no page of ours may cause."""

    def __init__(self, page: Page, url: str) -> None:
        self._page = page
        self._origin = "/".join(url.split("/")[:3])
        self._wrong: list[str] = []
        page.on("console", lambda said: self._console(said.type, said.text))
        page.on("pageerror", lambda error: self._wrong.append(f"error on the page: {error}\n{error.stack or ''}"))
        page.on("request", lambda request: self._request(request.url))
        self._refused: list[str] = []
        page.on("requestfailed", lambda one: self._refused.append(f"{one.method} {one.url}: {one.failure}"))
        page.on("response", lambda one: self._response(one.status, one.url))

    def _console(self, kind: str, text: str) -> None:
        if kind in {"error", "warning"} and not text.startswith(BY_DESIGN):
            self._wrong.append(f"{kind} in the console: {text}")

    def _request(self, url: str) -> None:
        if not url.startswith((f"{self._origin}/", "data:", "blob:")):
            self._wrong.append(f"asked of another address: {url}")

    def _response(self, status: int, url: str) -> None:
        if status >= 400:
            self._refused.append(f"{status} {url}")
        if status == 500:
            self._wrong.append(f"an error of the server: {url}")

    def shown(self) -> None:
        """Print the page and its failed requests: pytest shows them for a test that failed."""
        print(self._page.url, self._page.locator("body").inner_text(), *self._refused, sep="\n")

    def broken(self) -> list[str]:
        rules = self._page.evaluate("window.brokenRules ?? []")
        return [*self._wrong, *(f"broke the policy: {rule}" for rule in rules)]
