"""What the tests of actors share: no stage outlives its test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .stage import STAGES


@pytest.fixture(autouse=True)
def _stages_end() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    """Take each stage apart: what the collector does not know (replies) holds it, and it holds what happened."""
    yield
    for stage in list(STAGES):
        for one in (vars(stage).get("kernel"), stage):
            if one is not None:
                vars(one).clear()
    STAGES.clear()
