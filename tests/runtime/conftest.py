"""Fixtures of the runtime's tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from callboard import Runtime


@pytest.fixture(params=["memory", "sqlite"])
def open_runtime(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Runtime]:
    """Opens runtimes on the same journal, any number of times (a volatile journal is new each time)."""

    def make(**options: Any) -> Runtime:
        return Runtime(tmp_path / "state.db" if request.param == "sqlite" else None, **options)

    return make
