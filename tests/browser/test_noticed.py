"""Notices, which no transition reports, are shown below the workers, and always as text."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from .theatre import Theatre

Visit = Callable[..., Page]
MARKUP = "<img src=x onerror=alert(1)>"


def test_a_hook_that_failed_is_among_the_notices(theatre: Theatre, visit: Visit) -> None:
    failing = {"command": ["sh", "-c", f"exit 3 # {MARKUP}"]}
    job = theatre.submit("hooked", [{"name": "a", "command": ["true"], "on_completed": [failing]}])
    page = visit(f"{theatre.url}/#/workers")
    page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
    row = page.get_by_role("region", name="Notices").get_by_role("row").filter(has_text=f"{job}@1/a")
    expect(row).to_contain_text("hook failed")
    expect(row).to_contain_text(MARKUP)
    expect(row.get_by_role("cell").first).to_contain_text("error:")
    assert page.locator("img").count() == 0
