"""The command line: `callboard run FILE` and the other commands.

Rules:
- One small module per command; `app.py` puts them together. Heavy imports (Rich, anyio, the runtime) stand inside the
  functions that need them, so that `callboard --help` answers at once.
- Results go to stdout, errors to stderr: one clear paragraph, never a traceback. A fault of Callboard itself is
  reported as such, with the file that holds its report.
- Only the command line handles signals; the library never does.

| exit code | meaning |
| --- | --- |
| 0 | completed; nothing was found |
| 1 | a job failed; `check` or `audit` found errors; a command was refused; journal or output could not be written |
| 2 | bad input: arguments, a specification, a job or journal that is missing, locked, damaged or too new |
| 3 | an error in Callboard itself |
| 4 | the command waits in the inbox: no runtime has the journal open, or it has not answered in time |
| 130 | a job was cancelled, or the user interrupted the run (`callboard resume` continues it) |
| 141 | the reader of the output closed it too early: a run is stopped as by SIGTERM |
"""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line, and exit with its code."""
    from .first import be_first  # noqa: PLC0415 - as below

    be_first()
    from .command_errors import run_command  # noqa: PLC0415 - as above
    from .last import begin, leave  # noqa: PLC0415 - it must not keep `import callboard.runtime` from being light

    begin()
    leave(run_command(_app))


def _app() -> None:
    from ..extras import needs  # noqa: PLC0415 - as above
    from .hints import forget  # noqa: PLC0415 - as above

    with needs("The command line", "cli"):
        from .app import app  # noqa: PLC0415 - Typer is an extra
    forget()
    app(prog_name="callboard")
