"""The commands that say one thing to a job, task, breaker or worker of a runtime, or of a journal: a table.

What they may be said to, and what they do, stands in `runtime/commands/verbs.py` and where it points; here are their
words.

Rules:
- A command is a row: what it says to what, its help, the reason that is kept where none is given, and the options that
  only it has. All others are the same for all.
- A breaker's reset with a check runs the check here, in the operator's terminal, and resets only if it exits with 0.
  Under a request id that has reset it before, nothing is run.
- `cancel` and `resume` do more, and have modules of their own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .acting import TIMEOUT, Act, AsJson, By, MaybeReason, RequestId, Target, Timeout, acting, address, find
from .boards import Place, anywhere
from .options import JOURNAL, MaybeTask
from .trouble import FAILED, Trouble

if TYPE_CHECKING:
    from ..journal.contract import JournalQueries

    Named = tuple[str, str, str]  # the kind of the target, how a runtime is told of it, and how people are

Worker = Annotated[str, typer.Argument(metavar="WORKER", help="A worker's name, as `list` shows it.")]
Tool = Annotated[str, typer.Argument(metavar="TOOL", help="A tool's name.")]
ToolOrTask = Annotated[str, typer.Argument(metavar="TOOL", help="A tool's name; or JOB/TASK, which is parked.")]
ApprovalName = Annotated[
    str | None, typer.Option("--approval", metavar="NAME", help="Of the running body of the task: what it asks for.")
]
Deadline = Annotated[
    str | None, typer.Option("--deadline", metavar="SPAN", help="After which what it still runs is stopped: 90s, 15m.")
]
Cooldown = Annotated[
    str | None, typer.Option("--cooldown", metavar="SPAN", help="For how long (default: the tool's own): 90s, 15m.")
]
CheckCommand = Annotated[
    str | None, typer.Option("--check", metavar="COMMAND", help="A shell command that must exit with 0 first.")
]
_OPTIONS: dict[str, Any] = {
    "approval": ApprovalName, "deadline": Deadline, "cooldown": Cooldown, "check": CheckCommand,
}  # fmt: skip
_SPANS = ("deadline", "cooldown")
_LONGEST = 300.0  # seconds that a check may take


# -- what is named -----------------------------------------------------------------------------------------------------


def job_or_task(reader: JournalQueries, verb: str, target: str, task: str | None = None) -> Named:
    """The job or task that is meant, which the verb must be able to take. Raises Trouble."""
    from ..commands.verbs import VERBS  # noqa: PLC0415

    named, kinds = find(reader, target, task), VERBS[verb].messages
    if named.kind not in kinds:
        raise Trouble(f"{verb} takes a {' or a '.join(kinds)}, and {named.id} is a {named.kind}.")
    return named.kind, address(named), f"{named.kind} {named.id}"


def worker_named(reader: JournalQueries, _: str, target: str) -> Named:
    """The worker that is meant. Raises Trouble."""
    name = target.partition("#")[0]  # its last incarnation is meant
    names = (known for one in reader.workers() for known in (one.name, one.id.partition("#")[0]))
    return "worker", _known(name, names, "There is no worker"), f"worker {name}"


def breaker_named(reader: JournalQueries, _: str, target: str) -> Named:
    """The breaker of a tool that is meant. Raises Trouble."""
    names = (known for one in reader.breakers() for known in (one.name, one.id))
    return "breaker", _known(target, names, "No workstream of this journal has used a tool"), f"breaker {target}"


def _tool_or_task(reader: JournalQueries, verb: str, target: str) -> Named:
    return (job_or_task if "/" in target else breaker_named)(reader, verb, target)


def _known(name: str, names: Iterable[str], none: str) -> str:
    from ...actors.spec.schema import did_you_mean  # noqa: PLC0415

    known = list(dict.fromkeys(names))
    if name not in known:
        advice = did_you_mean(name, known) or f"there are: {', '.join(known[:20]) or 'none'}"
        raise Trouble(f"{none} {name!r:.80}; {advice}")
    return name


# -- the table ---------------------------------------------------------------------------------------------------------


class About(NamedTuple):
    """What a command is about."""

    find: Callable[..., Named]
    parameters: dict[str, tuple[Any, Any]]  # those that name it: annotation, default


class Row(NamedTuple):
    """A command."""

    group: str
    word: str  # what is typed, after that of its group
    verb: str
    about: About
    reason: str | None  # kept where none is given
    options: tuple[str, ...]
    help: str


_JOB_OR_TASK = About(job_or_task, {"target": (Target, inspect.Parameter.empty), "task": (MaybeTask, None)})
_WORKER = About(worker_named, {"target": (Worker, inspect.Parameter.empty)})
_TOOL = About(breaker_named, {"target": (Tool, inspect.Parameter.empty)})
_TOOL_OR_TASK = About(_tool_or_task, {"target": (ToolOrTask, inspect.Parameter.empty)})
TABLE = (
    Row(
        "", "approve", "approve", _JOB_OR_TASK, None, ("approval",),
        "Approve what is held: a task, or the workstream of a job; or what a running body asks for.",
    ),
    Row(
        "", "reject", "reject", _JOB_OR_TASK, None, ("approval",),
        "Reject what is held, which cancels it; or what a running body asks for.",
    ),
    Row(
        "", "retry", "retry", _JOB_OR_TASK, "retried by the user", (),
        "Run again what has ended: a job, or a task with all that waits for it.",
    ),
    Row(
        "", "skip", "skip", _JOB_OR_TASK, "skipped by an operator", (),
        "Do without a task: its dependents go on as if it had completed.",
    ),
    Row(
        "", "pause", "pause", _JOB_OR_TASK, "paused by the user", (),
        "Start nothing more of a job until `resume`; what runs goes on.",
    ),
    Row(
        "workers", "pause", "pause_worker", _WORKER, "paused by an operator", (),
        "Give a worker nothing new; what it runs goes on.",
    ),
    Row(
        "workers", "resume", "resume_worker", _WORKER, "resumed by an operator", (),
        "Give a paused worker tasks again.",
    ),
    Row(
        "workers", "terminate", "terminate_worker", _WORKER, "terminated by an operator", (),
        "End a worker at once.",
    ),
    Row(
        "workers", "shutdown", "shut_down_worker", _WORKER, "shut down by an operator", ("deadline",),
        "Let a worker finish what it runs, and end.",
    ),
    Row(
        "workers", "start", "start_worker", _WORKER, "started by an operator", (),
        "Start the next incarnation of a worker that has ended.",
    ),
    Row(
        "breaker", "reset", "reset", _TOOL_OR_TASK, "reset by an operator", ("check",),
        "Close a tool's breaker, so that all that waits for it goes on; or give a parked task one more attempt.",
    ),
    Row(
        "breaker", "trip", "trip", _TOOL, "tripped by an operator", ("cooldown",),
        "Open a tool's breaker: its tasks are parked until its cooldown is over, what runs goes on.",
    ),
)  # fmt: skip


def commands(group: str = "") -> Iterator[Callable[..., None]]:
    """The commands of a group; of none: those of the program itself."""
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
    command.__signature__ = inspect.Signature([  # type: ignore[attr-defined] # which is how a function is given one
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in parameters.items()
    ])  # fmt: skip
    return anywhere(command)


def _do(row: Row, act: Act, given: dict[str, Any]) -> None:
    from .reading import reading  # noqa: PLC0415
    from .spans import span  # noqa: PLC0415

    about = {part: given.pop(part) for part in row.about.parameters}
    with reading(act.place) as reader:
        kind, name, shown = row.about.find(reader, row.verb, **about)
    if given["by"] is None:
        given["by"] = act.who(None)
    check = given.pop("check", None)
    for option in row.options:
        if option in given and given[option] is None:
            del given[option]
        elif option in _SPANS:
            given[option] = span(given[option])
    if check is not None and not act.was_given(kind, name, given):
        _pass(check, shown)
    act.on(kind, name, shown, given, told=given.get("reason") or "")


def _pass(check: str, shown: str) -> None:
    """Run a check in this terminal. Raises Trouble if it does not pass."""
    import subprocess  # noqa: PLC0415

    try:  # what it prints is no answer of ours, so it goes to stderr
        code = subprocess.run(check, shell=True, timeout=_LONGEST, check=False, stdout=2).returncode  # noqa: S602
    except subprocess.TimeoutExpired:
        raise Trouble(f"{shown} was not reset: its check took over {_LONGEST:g} s.", FAILED) from None
    if code != 0:
        raise Trouble(f"{shown} was not reset: its check exited with {code}.", FAILED)
