"""`callboard init [FILE]`: write a first specification, which runs as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .command_errors import CommandError
from .terminal import echo

File = Annotated[Path, typer.Argument(metavar="[FILE]", help="The file to write; its name must end in .toml.")]

EXAMPLE = """\
# A workstream for Callboard. Run it:        callboard run {name}
# See it afterwards:                         callboard status      callboard history
# Stop it with Ctrl+C, and continue it:      callboard resume

name = "example"
deadline = "1h"            # for all tasks together; durations: 90, "90s", "5m", "1h30m", "2d"
max_parallel = 4           # attempts of this workstream at the same time

[defaults]
timeout = "5m"             # for one attempt of a task

[[tasks]]
name = "fetch"
command = ["sh", "-c", "echo fetching; echo 1 2 3 > numbers.txt"]   # a list of arguments; no shell unless asked for

  # A failure is retried only if `retry` says so. Here: up to 3 attempts, after 1 s, then 2 s, each +- 25 %.
  [tasks.retry]
  max_attempts = 3
  base_delay = "1s"

  # The task is completed only if its checks pass.
  [[tasks.checks]]
  file = "numbers.txt"

[[tasks]]
name = "count"
command = "wc -w < numbers.txt"
shell = true               # one text for a shell; pass values by `env`, never paste them into it
depends_on = ["fetch"]     # it must have completed

[[tasks]]
name = "guess"
command = ["sh", "-c", "echo this fails; exit 3"]
depends_on = ["fetch"]
optional = true            # its failure does not fail the workstream

[[tasks]]
name = "tidy"
command = ["rm", "-f", "numbers.txt"]
after = ["fetch", "count", "guess"]    # they must have ended, in any state: use it to clean up

# A Python function instead of a command: run = "module:function", in a module beside this file.
#   async def report(task):            # or a plain function; it may take nothing
#       return {{"words": task.results["count"]}}
"""


def init(file: File = Path("callboard.toml")) -> None:
    """Write a commented example specification."""
    if file.suffix.lower() != ".toml":
        raise CommandError(f"{file} must end in .toml: the example is TOML.")
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(EXAMPLE.format(name=file))
    except FileExistsError:
        raise CommandError(f"{file} exists already, and was not changed. Give another name.") from None
    except OSError as error:
        raise CommandError(f"{file} cannot be written: {error.strerror}.") from None
    echo(f"Wrote {file}. Run it with: callboard run {file}")
