"""The command that starts the pytest of a user's project, for tests of what the library's plugin does there."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

_UNUSED = ("schemathesis", "faker", "hypothesispytest", "pytest_cov", "anyio")
"""Plugins that the tests' environment has, and such projects do not use: importing them takes 2 s of processor time."""
_INSTALLED = bool(entry_points(group="pytest11", name="callboard"))


def pytest_with(*plugins: str) -> list[str]:
    """The command, with these of the plugins that are left out otherwise."""
    left_out = [word for name in _UNUSED if name not in plugins for word in ("-p", f"no:{name}")]
    found = [] if _INSTALLED else ["-p", "callboard.runtime.testing.plugin"]
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *left_out, *found]
