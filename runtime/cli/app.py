"""The commands of the program, put together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperGroup

from .archive import archive
from .audit import audit
from .backup import backup, restore
from .boards import anywhere
from .breaker import breaker
from .cancel import cancel
from .check import check
from .control import commands
from .diagram import diagram
from .fire import fire
from .history import history
from .init import init
from .migrate import migrate
from .nodes import nodes
from .notices import notices
from .resume import resume
from .run import run
from .send import send
from .serve import serve
from .status import status
from .stream import stream
from .stuck import stuck
from .terminal import echo
from .tools import tools
from .top import top
from .workers import workers

_CODES = """\
Exit codes: 0 completed, done; 1 failed, refused, errors were found, or the journal or output could not be written
completely; 2 bad input (arguments, specification, no such job, journal missing, locked or damaged); 3 an error in
Callboard itself; 4 not in effect yet: the command waits in the inbox for the next start; 130 cancelled or interrupted
by the user; 141 the reader of the output closed it too early, and the run was stopped."""


class _Program(TyperGroup):
    """The program, which reports an invalid value in its own words: Typer passes on those of Pydantic."""

    def invoke(self, ctx: typer.Context) -> Any:  # type: ignore[override] # Typer's own Context
        """Run the command that was typed."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _in_our_words(error)
            raise


def _in_our_words(error: typer.BadParameter) -> str:
    """Return the message of an invalid value: the value, and what it must be."""
    found: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()  # of Pydantic, if it refused the value
    if not found:
        return str(error.message)
    own = found[0].get("ctx", {}).get("error")
    if own is not None:
        return str(own)
    asked = str(found[0]["msg"]).removeprefix("Input should be ").partition(", unable to")[0]
    return f"{found[0]['input']!r:.80} must be {asked}."


app = typer.Typer(
    cls=_Program,
    help="Run workstreams of tasks, durably: interrupted work continues where it stopped.",
    epilog=_CODES,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # plain help: Rich would take most of the time that `--help` needs
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)

_OWN: tuple[Callable[..., None], ...] = (
    anywhere(run), serve, anywhere(resume), anywhere(status), anywhere(history), anywhere(top), anywhere(stream),
    anywhere(stuck), anywhere(notices), anywhere(cancel), *commands(), anywhere(fire), anywhere(send), check, audit,
    archive, backup, restore, migrate, nodes, anywhere(tools), diagram, init,
)  # fmt: skip
for command in _OWN:
    app.command(epilog=_CODES)(command)
app.add_typer(breaker, name="breaker", epilog=_CODES)
app.add_typer(workers, name="workers", epilog=_CODES)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version  # noqa: PLC0415 - rarely asked

        echo(f"callboard {version('callboard')}")
        raise typer.Exit


@app.callback()
def callboard(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None:
    """Run workstreams of tasks, durably: interrupted work continues where it stopped."""
