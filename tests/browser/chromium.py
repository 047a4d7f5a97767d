"""The installed Chromium, driven by Playwright, which does not install its own browser."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, sync_playwright

from .theatre import PATIENCE

NAMES = ("chromium", "chromium-browser", "google-chrome")


class Missing(LookupError):  # noqa: N818 - it says what is the matter
    """No browser is installed."""


@contextmanager
def launched() -> Iterator[Browser]:
    """A browser, without a window. Raises Missing."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise Missing("no Chromium is installed (Debian: apt-get install chromium)")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path,
            args=["--disable-gpu", "--disable-quic", "--disable-sync"],
            chromium_sandbox=os.getuid() != 0,  # it refuses one for root
            timeout=PATIENCE * 1000,
        )
        yield browser
        browser.close()
