"""`callboard workers list|pause|resume|shutdown|terminate|start`: what the tasks of a running program run on.

Workers are of the program that runs the journal: where none does, there is nothing to act on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from .acting import TIMEOUT, Act, AsJson, By, MaybeReason, RequestId, Timeout, login
from .options import JOURNAL, Journal
from .trouble import Trouble

Name = Annotated[str, typer.Argument(metavar="WORKER", help="A worker's name, as `list` shows it.")]
All = Annotated[bool, typer.Option("--all", help="Also incarnations that have ended.")]
Deadline = Annotated[
    str | None, typer.Option("--deadline", metavar="SPAN", help="After which what it still runs is stopped: 90s, 15m.")
]

workers = typer.Typer(help="Show, pause, stop and start what tasks run on.", no_args_is_help=True)


@workers.command("list")
def list_(every: All = False, journal: Journal = JOURNAL, as_json: AsJson = False) -> None:
    """Show the workers of a journal."""
    from ...actors.records import iso  # noqa: PLC0415
    from . import words  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415
    from .status import as_lines, table  # noqa: PLC0415

    with reading(journal) as reader:
        records = [one for one in reader.workers() if every or one.finished_at is None]
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "id": one.id,
                "name": one.name,
                "state": one.state,
                "engine": one.engine,
                "capacity": one.capacity,
                "assigned": one.assigned,
                "capabilities": one.capabilities,
                "since": iso(one.updated_at),
                "reason": one.reason,
            }
            for one in records
        ]
        as_lines(rows)
        return
    now = time.time()
    table(
        ("name", "incarnation", "state", "for", "runs", "engine", "told"),
        [
            [
                one.name,
                str(one.run),
                str(one.state),
                words.took(now - one.updated_at),
                f"{one.assigned}/{one.capacity}",
                one.engine,
                words.one_line(one.reason or ""),
            ]
            for one in records
        ],
    )


def _say(act: Act, name: str, arguments: dict[str, Any], told: str = "") -> None:
    from ...actors.schema import did_you_mean  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415

    name = name.partition("#")[0]  # its last incarnation is meant
    with reading(act.journal) as reader:
        names = list(dict.fromkeys(one.name for one in reader.workers()))
    if name not in names:
        advice = did_you_mean(name, names) or f"there are: {', '.join(names[:20]) or 'none'}"
        raise Trouble(f"There is no worker {name!r:.80}; {advice}")
    act.on("worker", name, f"worker {name}", arguments, told=told)


def _command(word: str, verb: str, text: str, reason: str) -> Callable[..., None]:
    def command(
        name: Name,
        *,
        journal: Journal = JOURNAL,
        reason: MaybeReason = reason,
        by: By = None,
        request_id: RequestId = None,
        timeout: Timeout = TIMEOUT,
        as_json: AsJson = False,
    ) -> None:
        act = Act(journal, verb, request_id=request_id, timeout=timeout, as_json=as_json)
        _say(act, name, {"reason": reason, "by": by or login()}, reason or "")

    command.__name__ = word
    command.__doc__ = text
    return command


for _one in (
    _command("pause", "pause_worker", "Give a worker nothing new; what it runs goes on.", "paused by an operator"),
    _command("resume", "resume_worker", "Give a paused worker tasks again.", "resumed by an operator"),
    _command("terminate", "terminate_worker", "End a worker at once.", "terminated by an operator"),
):
    workers.command()(_one)


@workers.command()
def shutdown(
    name: Name,
    *,
    deadline: Deadline = None,
    journal: Journal = JOURNAL,
    reason: MaybeReason = "shut down by an operator",
    by: By = None,
    request_id: RequestId = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Let a worker finish what it runs, and end."""
    from .spans import span  # noqa: PLC0415

    act = Act(journal, "shut_down_worker", request_id=request_id, timeout=timeout, as_json=as_json)
    arguments: dict[str, Any] = {"reason": reason, "by": by or login()}
    if deadline is not None:
        arguments["deadline"] = span(deadline)
    _say(act, name, arguments, reason or "")


@workers.command()
def start(
    name: Name,
    *,
    journal: Journal = JOURNAL,
    request_id: RequestId = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Start the next incarnation of a worker that has ended."""
    _say(Act(journal, "start_worker", request_id=request_id, timeout=timeout, as_json=as_json), name, {})
