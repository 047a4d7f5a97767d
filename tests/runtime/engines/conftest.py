"""The event loops on which each engine is tested."""

from __future__ import annotations

from typing import Any

import pytest

ON_RAY = {"ray": ("trio", {}), "ray-async": ("asyncio", {"use_uvloop": False})}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip equal cases: on Ray, plain functions run under trio only, and async functions under asyncio only."""

    def twice(item: pytest.Item) -> bool:
        given: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
        loop = ON_RAY.get(str(given.get("name")))
        return loop is not None and given.get("anyio_backend") != loop

    left_out = [item for item in items if twice(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if not twice(item)]
