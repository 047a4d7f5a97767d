"""The fixtures of several files of the laboratory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from tests.reliability.mutations.planted import Planted


@pytest.fixture(scope="module")
def planted() -> Iterator[Planted]:
    """Runs the simulations with a deliberate bug."""
    with closing(Planted()) as planted:
        yield planted
