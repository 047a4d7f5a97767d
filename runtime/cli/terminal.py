"""How everything is printed: with nothing in it that a terminal would obey; and what the terminal of stdout can show.

Rules:
- Pictures that are drawn again, and colours, are for a terminal only, and not for one that says TERM=dumb.
- A NO_COLOR that is not empty forbids colours, and nothing else (no-color.org).
"""

from __future__ import annotations

import os
import sys

import typer

from ..text.printable import printable, printable_json


def draws() -> bool:
    """Whether stdout is a terminal on which a picture can be drawn over the last one."""
    return sys.stdout.isatty() and os.environ.get("TERM") not in {"dumb", "unknown"}


def colours() -> bool:
    """Whether what is printed to stdout may have colours."""
    return draws() and not os.environ.get("NO_COLOR")


def echo(text: str, *, err: bool = False) -> None:
    """Print a text as a line, or as several."""
    typer.echo(printable(text), err=err)


def echo_json(value: object) -> None:
    """Print a value as a line of JSON."""
    import msgspec  # noqa: PLC0415 - where JSON is wanted only

    sys.stdout.write(f"{printable_json(msgspec.json.encode(value))}\n")
