"""How a command acts on a runtime from another terminal, and tells what came of it.

Rules:
- Where a runtime has the journal, the command goes into its inbox, and is told as done once it is, durably.
- Where none has, it stays in the inbox and takes effect at the next start, before anything runs; that is told as such.
  (`cancel` does not come here then, unless it is a database: it needs no worker, and is done at once, see `cancel.py`.)
  What the present state does not allow is refused at once: nothing changes it meanwhile.
- A runtime behind a board is told over HTTP, by `overhttp.py`'s `BoardAct`: it answers when the command took effect.
- What is printed can be pasted: a target is "JOB", or "JOB/TASK".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..journal.location import in_words
from .boards import Board
from .options import LONGEST
from .terminal import echo, echo_json
from .trouble import BAD_INPUT, FAILED, INTERNAL, LATER, Trouble

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...actors.records.base import Record
    from ...actors.records.entities import JobRecord
    from ...actors.records.task import TaskRecord
    from ..commands.wire_errors import Answered
    from ..journal.contract import InboxRow, JournalQueries
    from ..journal.location import Store
    from .boards import Place

    Found = JobRecord | TaskRecord

TARGET = "JOB or JOB/TASK"
Target = Annotated[str, typer.Argument(metavar="JOB[/TASK]", help="A job's id (or its beginning), or a task of it.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the transition.")]
MaybeReason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="Why; it is kept with the transition.")
]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="Who says so (default: the login name).")]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="KEY",
        help="The same again is the same command, done once; what was refused is judged anew.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        max=LONGEST,
        help="How long to wait for a running runtime.",
    ),
]
TIMEOUT = 10.0
AsJson = Annotated[bool, typer.Option("--json", help="Print what came of it as a JSON object.")]
_CODES = {
    "conflict": FAILED, "reused": FAILED, "missing": BAD_INPUT, "unfound": BAD_INPUT, "fire": BAD_INPUT,
    "invalid": BAD_INPUT,
}  # fmt: skip


def login() -> str:
    """The name of who is at the terminal."""
    import getpass  # noqa: PLC0415

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # nobody, as the system has it
        return "unknown"


class Act(ABC):
    """One command to one target. place: what holds that: a journal, or a board."""

    def __init__(self, place: Place, verb: str, *, request_id: str | None, timeout: float, as_json: bool) -> None:
        self.place = place
        self.verb = verb
        self.timeout = timeout
        self.as_json = as_json
        self.request_id = request_id if request_id is not None else _new_id()

    def who(self, by: str | None) -> str | None:
        """Who says it."""
        return by or login()

    @abstractmethod
    def on(self, kind: str, target: str, shown: str, arguments: dict[str, Any], *, told: str = "") -> None:
        """Do it. `shown` is the target in words, `told` what is added to the line that says what came of it."""

    @abstractmethod
    def was_given(self, kind: str, target: str, arguments: dict[str, Any]) -> bool:
        """Whether it was given before under the same key. Raises Trouble where that was another command."""

    def check(self, shown: str, arguments: dict[str, Any]) -> None:
        """Raises Trouble for a key, a name or a reason that no journal takes."""
        from ..commands.author import name_of, reason_of  # noqa: PLC0415
        from ..commands.idempotency import check_request_id  # noqa: PLC0415

        try:
            check_request_id(self.request_id)
            if arguments.get("by") is not None:
                name_of(arguments["by"])
            if arguments.get("reason") is not None:
                reason_of(arguments["reason"])
        except ValueError as error:
            raise Trouble(f"{shown}: {error}") from None

    def tell(self, shown: str, answered: Answered, told: str = "") -> None:
        """Print what came of it. Raises Trouble for what was refused."""
        from ..commands.wire_errors import in_zone  # noqa: PLC0415
        from .words import due, one_line  # noqa: PLC0415

        code = 0 if answered.refused is None else _CODES.get(answered.refused, INTERNAL)
        if self.as_json:
            self._json(answered, code)
            raise typer.Exit(code)
        if answered.error is not None:
            text = in_zone(answered, due).removeprefix(f"{answered.kind}: ").removeprefix(f"{shown}: ")
            raise Trouble(f"{shown}: {one_line(text, 2000)}", code)
        told = f" ({one_line(told)})" if told else ""
        if answered.id:
            inner = answered.workstream if answered.workstream != answered.state else ""
            state = f"{answered.state}{f', its workstream {inner}' if inner else ''}"
            echo(f"{answered.kind} {answered.id} {state}{told}")
        else:
            echo(f"{shown}: done{told}")

    def later(self, text: str) -> None:
        """Say that it has not taken effect yet, or may not have. Ends the command."""
        if self.as_json:
            echo_json({"request_id": self.request_id, "verb": self.verb, "later": text})
            raise typer.Exit(LATER)
        raise Trouble(text, LATER)

    def _json(self, answered: Answered, code: int) -> None:
        import msgspec  # noqa: PLC0415

        told = msgspec.to_builtins(answered)
        echo_json({"request_id": self.request_id, "verb": self.verb, **told, "exit_code": code})


class JournalAct(Act):
    """One command to one target of a journal's file, or of a database."""

    def __init__(self, journal: Store, verb: str, *, request_id: str | None, timeout: float, as_json: bool) -> None:
        super().__init__(journal, verb, request_id=request_id, timeout=timeout, as_json=as_json)
        self.journal = journal

    def on(self, kind: str, target: str, shown: str, arguments: dict[str, Any], *, told: str = "") -> None:
        """Do it. `shown` is the target in words, `told` what is added to the line that says what came of it."""
        from ..commands.client import command  # noqa: PLC0415 - sqlite3
        from ..journal.location import owner_of  # noqa: PLC0415

        owner = owner_of(self.journal)
        if owner is None:
            before = self.leave(kind, target, shown, arguments)
            if before is not None:
                self._tell(kind, shown, before, told)
                return
            when = "the next start" if kind != "machine" else "the next start of a program that has its machine"
            self.later(f"{self.verb} {shown}: nobody runs {in_words(self.journal)} now. It will take effect at {when}.")
        answered = command(self.journal, self._row(kind, target, arguments), self.timeout)
        if answered is None:
            if owner_of(self.journal) is None:
                text = f"{owner} stopped before an answer came. It will take effect at the next start"
            else:
                text = f"no answer of {owner} within {self.timeout:g} s. It stays in the inbox, and takes effect "
                text += "when its turn comes"
            self.later(f"{self.verb} {shown}: {text}, unless it has by then: `callboard status` shows.")
        else:
            self._tell(kind, shown, answered, told)

    def _tell(self, kind: str, shown: str, answered: Answered, told: str) -> None:
        import msgspec  # noqa: PLC0415

        from ..journal.location import Database  # noqa: PLC0415

        if kind == "breaker" and isinstance(self.journal, Database) and answered.id and not self.as_json:
            # who answered is the breaker of one node, and the others follow it
            state = f"{answered.state} for all nodes"
            answered = msgspec.structs.replace(answered, id=shown.partition(" ")[2], state=state)
        self.tell(shown, answered, told)

    def leave(self, kind: str, target: str, shown: str, arguments: dict[str, Any]) -> Answered | None:
        """Put it into the inbox of a journal that nobody runs, and return None; or what it was answered before.

        Raises Trouble where the state does not allow it.
        """
        from ..commands.client import put  # noqa: PLC0415 - sqlite3

        row = self._row(kind, target, arguments)
        self.check(shown, arguments)
        before = self._refuse_what_cannot_be(row, shown)
        if before is None:
            put(self.journal, row)
        return before

    def refuse(self, kind: str, target: str, shown: str, arguments: dict[str, Any]) -> None:
        """Refuse what the present state does not allow, before anything is opened. Raises Trouble."""
        self._refuse_what_cannot_be(self._row(kind, target, arguments), shown)

    def was_given(self, kind: str, target: str, arguments: dict[str, Any]) -> bool:
        """Whether it was given before under the same key. Raises Trouble where that was another command."""
        from .keys import known  # noqa: PLC0415
        from .reading import reading  # noqa: PLC0415

        with reading(self.journal) as reader:
            return bool(known(reader, self._row(kind, target, arguments)))

    def _row(self, kind: str, target: str, arguments: dict[str, Any]) -> InboxRow:
        from ..journal.contract import InboxRow  # noqa: PLC0415

        return InboxRow(self.verb, kind, target, self.request_id, arguments, _now())

    def _refuse_what_cannot_be(self, row: InboxRow, shown: str) -> Answered | None:
        """Refuse what a journal that nobody runs does not allow: Trouble. Returns the answer that it gave before."""
        from ...machines.builtin.table import MACHINES  # noqa: PLC0415
        from ..commands.verbs import VERBS, commands_of  # noqa: PLC0415
        from .keys import (  # noqa: PLC0415
            as_verb,
            known,
            refuse_completed,
            refuse_undecidable,
            refuse_under_way,
            refuse_unknown_event,
        )
        from .reading import reading  # noqa: PLC0415

        if row.kind == "worker" or not VERBS[row.verb].stopped:
            raise Trouble(f"{shown}: nobody runs {in_words(self.journal)} now, so it has no living worker.", FAILED)
        with reading(self.journal) as reader:
            before = known(reader, row)
            if before:
                return None if before is True else before
            meant = as_verb(reader, row, shown)
            if meant is None:
                return None
            row, verb = meant, VERBS[meant.verb]
            if row.verb in {"approve", "reject"} and refuse_undecidable(reader, row, shown):
                return None
            if row.verb == "fire":
                refuse_unknown_event(reader, row, shown)
            if row.verb in {"skip", "retry"}:
                refuse_under_way(reader, row, shown)
            if row.verb == "retry":
                refuse_completed(reader, row, shown)
            named = not verb.event or "approval" in row.arguments
            about: Sequence[Record] = [] if named else meant_by(reader, row.kind, row.target)
        knows = [(one.kind, MACHINES[one.kind].valid_events(str(one.state))) for one in about]
        if not about or any(verb.event in events for _, events in knows):
            return None
        whose = ("it" if one.kind == row.kind else f"its {one.kind}" for one in about)
        told = "; ".join(f"{who} is {one.shown}" for who, one in zip(whose, about, strict=True))
        can = {word for kind, events in knows for word in commands_of(kind, events)}
        possible = f"possible there: {', '.join(sorted(can))}" if can else "nothing leaves that"
        raise Trouble(f"{row.verb} {shown} is not possible: {told}; {possible}.", FAILED)


def acting(place: Place, verb: str, *, request_id: str | None, timeout: float, as_json: bool) -> Act:
    """A command at that place."""
    common: dict[str, Any] = {"request_id": request_id, "timeout": timeout, "as_json": as_json}
    if not isinstance(place, Board):
        return JournalAct(place, verb, **common)
    from .overhttp import BoardAct  # noqa: PLC0415 - heavy

    return BoardAct(place, verb, **common)


def meant_by(reader: JournalQueries, kind: str, target: str) -> Sequence[Record]:
    """The records of what a command to that target may be about: of a job also its workstream."""
    if kind == "breaker":
        return [breaker for breaker in reader.breakers() if breaker.name == target]
    job_id, _, name = ("", "", "") if kind == "job" else target.rpartition("/")
    job = reader.job(job_id or target)
    last = None if job is None else job.last_of(reader.workstreams(job.id))
    if job is None or last is None:
        return []
    if name:
        return [task for task in reader.tasks(last.key) if task.name == name]
    return [job, last]


def address(named: Found) -> str:
    """How a runtime is told of a job or task."""
    from ...actors.records.task import TaskRecord  # noqa: PLC0415

    return f"{named.job_id}/{named.name}" if isinstance(named, TaskRecord) else named.id


def find(reader: JournalQueries, target: str, task: str | None = None) -> Found:
    """The job or task that "JOB", "JOB/TASK" or "JOB@RUN/TASK" means. Raises Trouble."""
    from ...actors.spec.digits import whole  # noqa: PLC0415 - `--help` imports no actors
    from .reading import find_job, find_task  # noqa: PLC0415

    if not target.strip():
        raise Trouble("No job is named: an empty name would mean any.")
    job = reader.job(target)  # a child job's id has slashes too
    head, slash, name = ("", "", "") if job is not None else target.rpartition("/")
    if job is None:
        job = reader.job(head or target)
    if job is None:
        head, at, run = (head or target).rpartition("@")
        of_run = bool(at) and whole(run) is not None
        job = find_job(reader, head if of_run else head + at + run, to_act=True)
        if of_run and run != str(job.run):
            raise Trouble(
                f"{target!r:.80} is of run {run:.10}; job {job.id} is in run {job.run}: only that can be acted on."
            )
    if slash and task is not None:
        raise Trouble(f"{target!r:.80} names a task already; {task!r:.80} is one too many.")
    wanted = name if slash else task
    return job if wanted is None else find_task(reader, job, wanted)


def _new_id() -> str:
    from ..commands.idempotency import made_key  # noqa: PLC0415

    return made_key()


def _now() -> float:
    import time  # noqa: PLC0415

    return time.time()
