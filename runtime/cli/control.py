"""Simple commands to a job, task, breaker or worker, from one table.

`runtime/commands/verbs.py` says which targets a verb takes, and what it does; this module has the words.

Rules:
- A row is a command: its verb and target, its help, the reason that is kept by default, and its own options. All other
  options are the same for all.
- A breaker's reset with a check runs the check in the operator's terminal, and resets only if the check exits with 0.
  If the same request id has reset it before, no check runs.
- `cancel` and `resume` do more, and have modules of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .acting import TIMEOUT, AsJson, By, MaybeReason, RequestId, SentCommand, Target, Timeout, acting, address, find
from .boards import Place, anywhere
from .command_errors import FAILED, CommandError
from .options import JOURNAL, MaybeTask

if TYPE_CHECKING:
    from ..journal.contract import JournalQueries

    Named = tuple[str, str, str]  # the target: its kind, its name for a runtime, its name for people

Worker = Annotated[str, typer.Argument(metavar="WORKER", help="A worker's name, as `list` shows it.")]
Tool = Annotated[str, typer.Argument(metavar="TOOL", help="A tool's name.")]
ToolOrTask = Annotated[str, typer.Argument(metavar="TOOL", help="A tool's name; or a parked task, as JOB/TASK.")]
ApprovalName = Annotated[
    str | None, typer.Option("--approval", metavar="NAME", help="The approval that the task's running body asks for.")
]
Deadline = Annotated[
    str | None, typer.Option("--deadline", metavar="SPAN", help="Stop its running attempts after this time: 90s, 15m.")
]
Cooldown = Annotated[
    str | None, typer.Option("--cooldown", metavar="SPAN", help="How long (default: the tool's own): 90s, 15m.")
]
CheckCommand = Annotated[
    str | None, typer.Option("--check", metavar="COMMAND", help="A shell command that must exit with 0 first.")
]
FromStep = Annotated[
    str | None,
    typer.Option(
        "--from-step", metavar="STEP", help="Run the task again from this step (NAME or NAME#3) on; keep those before."
    ),
]
_OPTIONS: dict[str, Any] = {
    "approval": ApprovalName, "from_step": FromStep, "deadline": Deadline, "cooldown": Cooldown, "check": CheckCommand,
}  # fmt: skip
_SPANS = ("deadline", "cooldown")
_LONGEST = 300.0  # seconds that a check may take


# -- targets -----------------------------------------------------------------------------------------------------------


def job_or_task(reader: JournalQueries, verb: str, target: str, task: str | None = None) -> Named:
    """Find the job or task of a command, for a verb that takes its kind. Raises CommandError."""
    from ..commands.verbs import VERBS  # noqa: PLC0415

    named, kinds = find(reader, target, task), VERBS[verb].messages
    if named.kind not in kinds:
        raise CommandError(f"{verb} takes a {' or a '.join(kinds)}, and {named.id} is a {named.kind}.")
    return named.kind, address(named), f"{named.kind} {named.id}"


def worker_named(reader: JournalQueries, _: str, target: str) -> Named:
    """Find the worker of a command. Raises CommandError."""
    name = target.partition("#")[0]  # the last incarnation gets the command
    names = (name_or_id for one in reader.workers() for name_or_id in (one.name, one.id.partition("#")[0]))
    return "worker", _known(name, names, "There is no worker"), f"worker {name}"


def breaker_named(reader: JournalQueries, _: str, target: str) -> Named:
    """Find the tool's breaker of a command. Raises CommandError."""
    names = (name_or_id for one in reader.breakers() for name_or_id in (one.name, one.id))
    return "breaker", _known(target, names, "No workstream of this journal has used a tool"), f"breaker {target}"


def _tool_or_task(reader: JournalQueries, verb: str, target: str) -> Named:
    return (job_or_task if "/" in target else breaker_named)(reader, verb, target)


def _known(name: str, names: Iterable[str], none: str) -> str:
    from ...machines.keywords import did_you_mean  # noqa: PLC0415

    existing = list(dict.fromkeys(names))
    if name not in existing:
        advice = did_you_mean(name, existing) or f"there are: {', '.join(existing[:20]) or 'none'}"
        raise CommandError(f"{none} {name!r:.80}; {advice}")
    return name


# -- the table ---------------------------------------------------------------------------------------------------------


class CommandTarget(NamedTuple):
    """The target of a command: how it is found, and its parameters."""

    find: Callable[..., Named]
    parameters: dict[str, tuple[Any, Any]]  # by name: annotation and default


class Row(NamedTuple):
    """One command of the table."""

    group: str
    word: str  # the word that is typed, after its group's
    verb: str
    about: CommandTarget
    reason: str | None  # the default
    options: tuple[str, ...]
    help: str


_JOB_OR_TASK = CommandTarget(job_or_task, {"target": (Target, inspect.Parameter.empty), "task": (MaybeTask, None)})
_WORKER = CommandTarget(worker_named, {"target": (Worker, inspect.Parameter.empty)})
_TOOL = CommandTarget(breaker_named, {"target": (Tool, inspect.Parameter.empty)})
_TOOL_OR_TASK = CommandTarget(_tool_or_task, {"target": (ToolOrTask, inspect.Parameter.empty)})
TABLE = (
    Row(
        "", "approve", "approve", _JOB_OR_TASK, None, ("approval",),
        "Approve a held task, the held workstream of a job, or an approval that a running body asks for.",
    ),
    Row(
        "", "reject", "reject", _JOB_OR_TASK, None, ("approval",),
        "Reject a held task or workstream, which cancels it, or an approval that a running body asks for.",
    ),
    Row(
        "", "retry", "retry", _JOB_OR_TASK, "retried by the user", ("from_step",),
        "Run an ended job again, or an ended task with all tasks that depend on it.",
    ),
    Row(
        "", "skip", "skip", _JOB_OR_TASK, "skipped by an operator", (),
        "Skip a task: its dependents go on as if it had completed.",
    ),
    Row(
        "", "pause", "pause", _JOB_OR_TASK, "paused by the user", (),
        "Start no more tasks of a job until `resume`; running tasks go on.",
    ),
    Row(
        "workers", "pause", "pause_worker", _WORKER, "paused by an operator", (),
        "Give a worker no new tasks; its running tasks go on.",
    ),
    Row(
        "workers", "resume", "resume_worker", _WORKER, "resumed by an operator", (),
        "Give a paused worker tasks again.",
    ),
    Row(
        "workers", "terminate", "terminate_worker", _WORKER, "terminated by an operator", (),
        "Stop a worker at once.",
    ),
    Row(
        "workers", "shutdown", "shut_down_worker", _WORKER, "shut down by an operator", ("deadline",),
        "Let a worker finish its running tasks, then stop it.",
    ),
    Row(
        "workers", "start", "start_worker", _WORKER, "started by an operator", (),
        "Start a worker that has ended, as its next incarnation.",
    ),
    Row(
        "breaker", "reset", "reset", _TOOL_OR_TASK, "reset by an operator", ("check",),
        "Close a tool's breaker, so that its waiting tasks go on; or give a parked task one more attempt.",
    ),
    Row(
        "breaker", "trip", "trip", _TOOL, "tripped by an operator", ("cooldown",),
        "Open a tool's breaker: its tasks are parked until the cooldown is over; running tasks go on. "
        "(It has no --check, since a parked task uses up no attempt.)",
    ),
)  # fmt: skip


def commands(group: str = "") -> Iterator[Callable[..., None]]:
    """Make the commands of a group; of the empty group: those of the program itself."""
    return (_command(row) for row in TABLE if row.group == group)


def _command(row: Row) -> Callable[..., None]:
    parameters = {
        **row.about.parameters, **{name: (_OPTIONS[name], None) for name in row.options},
        "journal": (Place, JOURNAL), "reason": (MaybeReason, row.reason), "by": (By, None),
        "request_id": (RequestId, None), "timeout": (Timeout, TIMEOUT), "as_json": (AsJson, False),
    }  # fmt: skip

    def command(**given: Any) -> None:
        common = {name: given.pop(name) for name in ("request_id", "timeout", "as_json")}
        _do(row, acting(given.pop("journal"), row.verb, **common), given)

    command.__name__, command.__doc__ = row.word, row.help
    command.__annotations__ = {name: annotation for name, (annotation, _) in parameters.items()}
    command.__signature__ = inspect.Signature([  # type: ignore[attr-defined] # the way to set it
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in parameters.items()
    ])  # fmt: skip
    return anywhere(command)


def _do(row: Row, act: SentCommand, given: dict[str, Any]) -> None:
    from ...actors.times import cooldown_of  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415
    from .spans import span  # noqa: PLC0415

    about = {part: given.pop(part) for part in row.about.parameters}
    check = given.pop("check", None)
    if check is not None and not check.strip():
        raise CommandError(
            "--check takes a shell command, and this one is empty: leave it out to reset without a check."
        )
    with reading(act.place) as reader:
        kind, name, shown = row.about.find(reader, row.verb, **about)
    if given["by"] is None:
        given["by"] = act.who(None)
    for option in row.options:
        if option in given and given[option] is None:
            del given[option]
        elif option in _SPANS:
            given[option] = span(given[option])
    if given.get("cooldown") is not None:
        try:
            cooldown_of(given["cooldown"])
        except ValueError as error:
            raise CommandError(f"--cooldown: {error}.") from None
    act.check(shown, given)  # before a check runs that may take long
    if check is not None and not act.was_given(kind, name, given):
        _pass(check, shown)
    act.on(kind, name, shown, given, detail=given.get("reason") or "")


def _pass(check: str, shown: str) -> None:
    """Run a check in this terminal. Raises CommandError if it fails."""
    import subprocess  # noqa: PLC0415

    try:  # stdout is for our own result, so the check's output goes to stderr
        code = subprocess.run(check, shell=True, timeout=_LONGEST, check=False, stdout=2).returncode  # noqa: S602
    except subprocess.TimeoutExpired:
        raise CommandError(f"{shown} was not reset: its check took more than {_LONGEST:g} s.", FAILED) from None
    if code != 0:
        raise CommandError(f"{shown} was not reset: its check exited with {code}.", FAILED)
