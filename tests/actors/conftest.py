"""Fixtures of the actors' tests: every stage ends with its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .stage import HARNESSES


@pytest.fixture(autouse=True)
def _stages_end() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    """Clear each stage: objects that the garbage collector does not see (replies) would keep it in memory."""
    yield
    for stage in list(HARNESSES):
        for one in (vars(stage).get("kernel"), stage):
            if one is not None:
                vars(one).clear()
    HARNESSES.clear()
