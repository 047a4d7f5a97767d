"""Spans of time as they are given on the command line."""

from __future__ import annotations

import re

from .trouble import Trouble

_SECONDS = re.compile(r"[0-9]+\.?[0-9]*|\.[0-9]+")  # in these digits: `float` takes those of all scripts


def span(text: str) -> float:
    """Seconds of "2h", "90m", "1d", "30" (seconds). Raises Trouble for what is none."""
    from ...actors.spec.times import seconds  # noqa: PLC0415

    try:
        return seconds(float(text) if _SECONDS.fullmatch(text) else text)
    except (ValueError, TypeError):
        raise Trouble(f"{text!r:.40} is no span of time: give it as 90s, 15m, 2h or 30d.") from None
