"""The number of tries: few and fixed in CI; many in the long mode, for a given time."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

LONG = os.environ.get("CALLBOARD_LABORATORY", "")


def tries(number: int) -> settings:
    """So many examples, the same each time; in the long mode a thousand times as many, and new ones."""
    return settings(
        max_examples=number * 1_000 if LONG else number,
        derandomize=not LONG,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
