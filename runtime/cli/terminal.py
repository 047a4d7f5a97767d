"""How everything is printed: with nothing in it that a terminal would obey."""

from __future__ import annotations

import sys

import typer

from ..printable import printable, printable_json


def echo(text: str, *, err: bool = False) -> None:
    """Print a text as a line, or as several."""
    typer.echo(printable(text), err=err)


def echo_json(value: object) -> None:
    """Print a value as a line of JSON."""
    import msgspec  # noqa: PLC0415 - where JSON is wanted only

    sys.stdout.write(f"{printable_json(msgspec.json.encode(value))}\n")
