"""The number of tries: few, and always the same, in CI; for a given time in the laboratory's long mode."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

LONG = os.environ.get("CALLBOARD_LABORATORY", "")


def tries(number: int) -> settings:
    """So many examples, the same ones each time; a thousand times as many, and new ones, in the long mode."""
    return settings(
        max_examples=number * 1_000 if LONG else number,
        derandomize=not LONG,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
