"""`callboard breaker list|reset|trip`: the circuit breakers of tools.

A reset with a check runs the check here, in the operator's terminal, and resets only if it exits with 0.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .acting import TIMEOUT, Act, AsJson, By, Reason, RequestId, Timeout, address, find, login
from .options import JOURNAL, Journal
from .trouble import FAILED, Trouble

Tool = Annotated[str, typer.Argument(metavar="TOOL", help="A tool's name.")]
ToolOrTask = Annotated[str, typer.Argument(metavar="TOOL", help="A tool's name; or JOB/TASK, which is parked.")]
CheckCommand = Annotated[
    str | None, typer.Option("--check", metavar="COMMAND", help="A shell command that must exit with 0 first.")
]
Cooldown = Annotated[
    str | None, typer.Option("--cooldown", metavar="SPAN", help="For how long (default: the tool's own): 90s, 15m.")
]
_LONGEST = 300.0  # seconds that a check may take

breaker = typer.Typer(help="Show, reset and trip the circuit breakers of tools.", no_args_is_help=True)


@breaker.command("list")
def list_(journal: Journal = JOURNAL, as_json: AsJson = False) -> None:
    """Show the breakers of a journal."""
    import time  # noqa: PLC0415

    from ...actors.records import iso  # noqa: PLC0415
    from . import words  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415
    from .status import as_lines, table  # noqa: PLC0415

    with reading(journal) as reader:
        records = reader.breakers()
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "tool": record.name,
                "state": record.state,
                "failures": record.failures,
                "since": iso(record.updated_at),
                "until": None if record.due_at is None else iso(record.due_at),
                "reason": record.reason,
            }
            for record in records
        ]
        as_lines(rows)
        return
    now = time.time()
    table(
        ("tool", "state", "for", "failures", "until", "told"),
        [
            [
                record.name,
                str(record.state),
                words.took(now - record.updated_at),
                f"{record.failures}/{record.failure_threshold}",
                "" if record.due_at is None else words.moment(record.due_at),
                words.one_line(record.reason or ""),
            ]
            for record in records
        ],
    )


@breaker.command()
def reset(
    target: ToolOrTask,
    *,
    check: CheckCommand = None,
    journal: Journal = JOURNAL,
    reason: Reason = "reset by an operator",
    by: By = None,
    request_id: RequestId = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Close a tool's breaker, so that all that waits for it goes on; or give a parked task one more attempt."""
    from .reading import reading  # noqa: PLC0415

    act = Act(journal, "reset", request_id=request_id, timeout=timeout, as_json=as_json)
    arguments = {"reason": reason, "by": by or login()}
    with reading(journal) as reader:
        if "/" in target:
            named = find(reader, target)
            kind, name, shown = named.kind, address(named), f"task {named.id}"
        else:
            kind, name, shown = "breaker", _known(target, [one.name for one in reader.breakers()]), f"breaker {target}"
    if check is not None:
        _pass(check, shown)
    act.on(kind, name, shown, arguments, told=reason)


@breaker.command()
def trip(
    tool: Tool,
    *,
    cooldown: Cooldown = None,
    journal: Journal = JOURNAL,
    reason: Reason = "tripped by an operator",
    by: By = None,
    request_id: RequestId = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Open a tool's breaker: its tasks are parked until its cooldown is over, what runs goes on."""
    from .reading import reading  # noqa: PLC0415
    from .spans import span  # noqa: PLC0415

    act = Act(journal, "trip", request_id=request_id, timeout=timeout, as_json=as_json)
    arguments: dict[str, Any] = {"reason": reason, "by": by or login()}
    if cooldown is not None:
        arguments["cooldown"] = span(cooldown)
    with reading(journal) as reader:
        name = _known(tool, [one.name for one in reader.breakers()])
    act.on("breaker", name, f"breaker {tool}", arguments, told=reason)


def _known(tool: str, names: list[str]) -> str:
    if tool in names:
        return tool
    from ...actors.schema import did_you_mean  # noqa: PLC0415

    advice = did_you_mean(tool, names) or f"there are: {', '.join(sorted(names)[:20]) or 'none'}"
    raise Trouble(f"No workstream of this journal has used a tool {tool!r:.80}; {advice}")


def _pass(check: str, shown: str) -> None:
    """Run a check in this terminal. Raises Trouble if it does not pass."""
    import subprocess  # noqa: PLC0415

    try:  # what it prints is no answer of ours, so it goes to stderr
        code = subprocess.run(check, shell=True, timeout=_LONGEST, check=False, stdout=2).returncode  # noqa: S602
    except subprocess.TimeoutExpired:
        raise Trouble(f"{shown} was not reset: its check took over {_LONGEST:g} s.", FAILED) from None
    if code != 0:
        raise Trouble(f"{shown} was not reset: its check exited with {code}.", FAILED)
