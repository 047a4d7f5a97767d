"""Safe output: text without control characters for a terminal, and what the terminal can show.

Rules:
- Redrawn screens and colours are only for a terminal, and not with TERM=dumb.
- A NO_COLOR that is not empty forbids colours, and nothing else (no-color.org).
"""

from __future__ import annotations

import os
import sys

import typer

from ..text.printable import printable, printable_json


def draws() -> bool:
    """Whether stdout is a terminal that can redraw a screen."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}


def colours() -> bool:
    """Whether output to stdout may have colours."""
    return draws() and not os.environ.get("NO_COLOR")


def echo(text: str, *, err: bool = False) -> None:
    """Print a text of one or more lines."""
    typer.echo(printable(text), err=err)


def echo_json(value: object) -> None:
    """Print a value as a line of JSON."""
    import msgspec  # noqa: PLC0415 - needed for JSON only

    sys.stdout.write(f"{printable_json(msgspec.json.encode(value))}\n")
