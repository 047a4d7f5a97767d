"""Durations on the command line."""

from __future__ import annotations

import re

from .command_errors import CommandError

_SECONDS = re.compile(r"[0-9]+\.?[0-9]*|\.[0-9]+")  # ASCII digits only: `float` takes those of all scripts


def span(text: str) -> float:
    """Read "2h", "90m", "1d" or "30" (seconds) as seconds. Raises CommandError for anything else."""
    from ...actors.times import seconds  # noqa: PLC0415

    try:
        return seconds(float(text) if _SECONDS.fullmatch(text) else text)
    except (ValueError, TypeError):
        raise CommandError(f"{text!r:.40} is not a duration. Write it as 90s, 15m, 2h or 30d.") from None
