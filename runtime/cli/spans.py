"""Spans of time as they are given on the command line."""

from __future__ import annotations

from .trouble import Trouble


def span(text: str) -> float:
    """Seconds of "2h", "90m", "1d", "30" (seconds). Raises Trouble for what is none."""
    from ...actors.times import seconds  # noqa: PLC0415

    try:
        return seconds(text if not text.replace(".", "", 1).isdigit() else float(text))
    except (ValueError, TypeError):
        raise Trouble(f"{text!r:.40} is no span of time: give it as 90s, 15m, 2h or 30d.") from None
