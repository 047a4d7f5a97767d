"""Commands from another terminal: send them to a runtime, and print the result.

Rules:
- If a runtime has the journal open, the command goes into its inbox, and is reported as done once its effect is
  durable.
- If not, it stays in the inbox and takes effect at the next start, before other work; the output says so. (`cancel` of
  a job in a file does not come here then: it needs no worker, and is done at once, see `cancel.py`.) A command that the
  present state does not allow is refused at once, since nothing else changes that state.
- A command to a runtime behind a board goes over HTTP, by `overhttp.py`'s `BoardCommand`: the board answers when the
  command has taken effect.
- Printed targets can be pasted: a target is "JOB", or "JOB/TASK".
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..journal.location import in_words
from .boards import Board
from .command_errors import BAD_INPUT, FAILED, INTERNAL, LATER, CommandError
from .hints import hint
from .options import LONGEST
from .terminal import echo, echo_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...actors.records.base import Record
    from ...actors.records.entities import JobRecord
    from ...actors.records.task import TaskRecord
    from ..commands.wire_errors import CommandAnswer
    from ..journal.contract import InboxRow, JournalQueries
    from ..journal.location import Store
    from .boards import Place

    Found = JobRecord | TaskRecord

TARGET = "JOB or JOB/TASK"
Target = Annotated[str, typer.Argument(metavar="JOB[/TASK]", help="A job's id (or its beginning), or its task.")]
Reason = Annotated[str, typer.Option("--reason", metavar="TEXT", help="The reason, kept with the transition.")]
MaybeReason = Annotated[
    str | None, typer.Option("--reason", metavar="TEXT", help="The reason, kept with the transition.")
]
By = Annotated[str | None, typer.Option("--by", metavar="NAME", help="The name to keep (default: the login name).")]
RequestId = Annotated[
    str | None,
    typer.Option(
        "--request-id",
        metavar="KEY",
        help="A command with the same key is carried out only once; a refused one may be sent again.",
    ),
]
Timeout = Annotated[
    float,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0,
        max=LONGEST,
        help="How long to wait for an answer of the runtime.",
    ),
]
TIMEOUT = 10.0
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as a JSON object.")]
_CODES = {
    "conflict": FAILED, "reused": FAILED, "full": FAILED, "missing": BAD_INPUT, "unfound": BAD_INPUT, "fire": BAD_INPUT,
    "invalid": BAD_INPUT,
}  # fmt: skip


def login() -> str:
    """Return the name of the user at the terminal."""
    import getpass  # noqa: PLC0415

    try:
        return getpass.getuser()
    except (OSError, KeyError):  # the system has no name for this user
        return "unknown"


class SentCommand(ABC):
    """One command to one target. place: the journal or board that has the target."""

    def __init__(self, place: Place, verb: str, *, request_id: str | None, timeout: float, as_json: bool) -> None:
        self.place = place
        self.verb = verb
        self.timeout = timeout
        self.as_json = as_json
        self.request_id = request_id if request_id is not None else _new_id()

    def who(self, by: str | None) -> str | None:
        """Return the name to keep with the command."""
        return login() if by is None else by

    @abstractmethod
    def on(self, kind: str, target: str, shown: str, arguments: dict[str, Any], *, detail: str = "") -> None:
        """Send the command. `shown`: the target for people; `detail`: text added to the line with the result."""

    @abstractmethod
    def was_given(self, kind: str, target: str, arguments: dict[str, Any]) -> bool:
        """Whether this command was given before with the same key. Raises CommandError if it was another command's."""

    def check(self, shown: str, arguments: dict[str, Any]) -> None:
        """Raise CommandError for a key, name or reason that no journal takes."""
        from ..commands.author import name_of, reason_of  # noqa: PLC0415
        from ..commands.idempotency import check_request_id  # noqa: PLC0415

        try:
            check_request_id(self.request_id)
            metadata: dict[str, Any] = arguments.get("metadata") or {}  # a machine keeps `by` there
            by = arguments.get("by", metadata.get("by"))
            if by is not None:
                name_of(by)
            if arguments.get("reason") is not None:
                reason_of(arguments["reason"])
        except (ValueError, TypeError) as error:
            raise CommandError(f"{shown}: {error}") from None

    def print_answer(self, shown: str, answered: CommandAnswer, detail: str = "") -> None:
        """Print the result. Raises CommandError if the command was refused."""
        from ..commands.wire_errors import in_zone, refused_by  # noqa: PLC0415
        from .words import due, one_line  # noqa: PLC0415

        code = 0 if answered.refused is None else _CODES.get(answered.refused, INTERNAL)
        if self.as_json:
            self._json(answered, code)
            raise typer.Exit(code)
        if answered.error is not None:
            text = in_zone(answered, due).removeprefix(f"{answered.kind}: ").removeprefix(f"{shown}: ")
            whose = "its job: " if shown.startswith("task ") and refused_by(answered) == "job" else ""
            raise CommandError(f"{shown}: {whose}{one_line(text, 2000)}", code)
        detail = f" ({one_line(detail)})" if detail else ""
        if answered.id:
            inner = answered.workstream if answered.workstream != answered.state else ""
            state = f"{answered.state}{f', its workstream {inner}' if inner else ''}"
            echo(f"{answered.kind} {answered.id} {state}{detail}")
        else:
            echo(f"{shown}: done{detail}")

    def later(self, text: str) -> None:
        """Report that the command has not taken effect yet, or may not have, and exit."""
        if self.as_json:
            echo_json({"request_id": self.request_id, "verb": self.verb, "later": text})
            raise typer.Exit(LATER)
        raise CommandError(text, LATER)

    def _json(self, answered: CommandAnswer, code: int) -> None:
        import msgspec  # noqa: PLC0415

        fields = msgspec.to_builtins(answered)
        echo_json({"request_id": self.request_id, "verb": self.verb, **fields, "exit_code": code})


class JournalCommand(SentCommand):
    """One command to one target in a journal's file, or in a database."""

    def __init__(self, journal: Store, verb: str, *, request_id: str | None, timeout: float, as_json: bool) -> None:
        super().__init__(journal, verb, request_id=request_id, timeout=timeout, as_json=as_json)
        self.journal = journal

    def on(self, kind: str, target: str, shown: str, arguments: dict[str, Any], *, detail: str = "") -> None:
        """Send the command. `shown`: the target for people; `detail`: text added to the line with the result."""
        from ..commands.client import command  # noqa: PLC0415 - sqlite3
        from ..journal.location import owner_of  # noqa: PLC0415

        self.check(shown, arguments)
        owner = owner_of(self.journal)
        if owner is None:
            before = self.leave(kind, target, shown, arguments)
            if before is not None:
                self._print_answer(kind, shown, before, detail)
                return
            when = "the next start" if kind != "machine" else "the next start of a program that has this machine"
            self.later(f"{self.verb} {shown}: {in_words(self.journal)} is not open now. It will take effect at {when}.")
        answered = command(self.journal, self._row(kind, target, arguments), self.timeout)
        if answered is None:
            if owner_of(self.journal) is None:
                text = f"{owner} stopped before it answered. The command will take effect at the next start"
            else:
                text = f"{owner} did not answer within {self.timeout:g} s. It stays in the inbox, and takes effect "
                text += "later"
            self.later(f"{self.verb} {shown}: {text}, if it has not already: see {hint('status')}.")
        else:
            self._print_answer(kind, shown, answered, detail)

    def _print_answer(self, kind: str, shown: str, answered: CommandAnswer, detail: str) -> None:
        import msgspec  # noqa: PLC0415

        from ..journal.location import Database  # noqa: PLC0415

        if kind == "breaker" and isinstance(self.journal, Database) and answered.id and not self.as_json:
            # one node's breaker answered, and the others follow it
            state = f"{answered.state} for all nodes"
            answered = msgspec.structs.replace(answered, id=shown.partition(" ")[2], state=state)
        self.print_answer(shown, answered, detail)

    def leave(self, kind: str, target: str, shown: str, arguments: dict[str, Any]) -> CommandAnswer | None:
        """Put the command into the inbox of a journal without a runtime. Returns an earlier answer, or None.

        Raises CommandError if the present state does not allow the command.
        """
        from ..commands.client import put  # noqa: PLC0415 - sqlite3

        row = self._row(kind, target, arguments)
        self.check(shown, arguments)
        before = self._refuse_what_cannot_be(row, shown)
        if before is None:
            put(self.journal, row)
        return before

    def refuse(self, kind: str, target: str, shown: str, arguments: dict[str, Any]) -> None:
        """Raise CommandError for a command that the present state does not allow.

        The journal need not be opened."""
        self._refuse_what_cannot_be(self._row(kind, target, arguments), shown)

    def was_given(self, kind: str, target: str, arguments: dict[str, Any]) -> bool:
        """Whether this command was given before with the same key. Raises CommandError if it was another command's."""
        from .keys import known  # noqa: PLC0415
        from .reading import reading  # noqa: PLC0415

        with reading(self.journal) as reader:
            return bool(known(reader, self._row(kind, target, arguments)))

    def _row(self, kind: str, target: str, arguments: dict[str, Any]) -> InboxRow:
        from ..journal.contract import InboxRow  # noqa: PLC0415

        return InboxRow(self.verb, kind, target, self.request_id, arguments, _now())

    def _refuse_what_cannot_be(self, row: InboxRow, shown: str) -> CommandAnswer | None:
        """Raise CommandError for a command that a journal without a runtime cannot allow.

        Returns an earlier answer, if any.
        """
        from ...machines.builtin.table import MACHINES  # noqa: PLC0415
        from ..commands.verbs import VERBS, commands_of  # noqa: PLC0415
        from .keys import (  # noqa: PLC0415
            as_verb,
            known,
            refuse_completed,
            refuse_ended,
            refuse_undecidable,
            refuse_under_way,
            refuse_unknown_event,
            refuse_unknown_step,
        )
        from .reading import reading  # noqa: PLC0415

        if row.kind == "worker" or not VERBS[row.verb].stopped:
            raise CommandError(f"{shown}: no runtime has {in_words(self.journal)} open, so no worker runs.", FAILED)
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
            if row.verb == "send":
                refuse_ended(reader, row, shown)
            if row.verb in {"skip", "retry"}:
                refuse_under_way(reader, row, shown)
            if row.verb == "retry":
                refuse_unknown_step(reader, row, shown)
                refuse_completed(reader, row, shown)
            named = not verb.event or "approval" in row.arguments
            about: Sequence[Record] = [] if named else meant_by(reader, row.kind, row.target)
        knows = [(one.kind, MACHINES[one.kind].valid_events(str(one.state))) for one in about]
        if not about or any(verb.event in events for _, events in knows):
            return None
        whose = ("it" if one.kind == row.kind else f"its {one.kind}" for one in about)
        states = "; ".join(f"{who} is {one.shown}" for who, one in zip(whose, about, strict=True))
        can = {word for kind, events in knows for word in commands_of(kind, events)}
        possible = f"possible now: {', '.join(sorted(can))}" if can else "no command is possible in that state"
        raise CommandError(f"{row.verb} {shown} is not possible: {states}; {possible}.", FAILED)


def acting(place: Place, verb: str, *, request_id: str | None, timeout: float, as_json: bool) -> SentCommand:
    """Make a command for that place."""
    common: dict[str, Any] = {"request_id": request_id, "timeout": timeout, "as_json": as_json}
    if not isinstance(place, Board):
        return JournalCommand(place, verb, **common)
    from .overhttp import BoardCommand  # noqa: PLC0415 - heavy

    return BoardCommand(place, verb, **common)


def meant_by(reader: JournalQueries, kind: str, target: str) -> Sequence[Record]:
    """Return the records that a command may concern: for a job also its workstream."""
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
    """Return the target of a job or task as a runtime names it."""
    from ...actors.records.task import TaskRecord  # noqa: PLC0415

    return f"{named.job_id}/{named.name}" if isinstance(named, TaskRecord) else named.id


def find(reader: JournalQueries, target: str, task: str | None = None) -> Found:
    """Find the job or task that "JOB", "JOB/TASK" or "JOB@RUN/TASK" names. Raises CommandError."""
    from ...actors.spec.digits import whole  # noqa: PLC0415 - `--help` imports no actors
    from .reading import find_job, find_task  # noqa: PLC0415

    if not target.strip():
        raise CommandError("Name a job: an empty name could mean any.")
    job = reader.job(target)  # a child job's id has slashes, too
    head, slash, name = ("", "", "") if job is not None else target.rpartition("/")
    if job is None:
        job = reader.job(head or target)
    if job is None:
        head, at, run = (head or target).rpartition("@")
        of_run = bool(at) and whole(run) is not None
        job = find_job(reader, head if of_run else head + at + run, to_act=True)
        if of_run and run != str(job.run):
            raise CommandError(
                f"{target!r:.80} is of run {run:.10}, but job {job.id} is in run {job.run}: only that can be changed."
            )
    if slash and task is not None:
        raise CommandError(f"{target!r:.80} names a task already; leave out {task!r:.80}.")
    wanted = name if slash else task
    return job if wanted is None else find_task(reader, job, wanted)


def _new_id() -> str:
    from ..commands.idempotency import made_key  # noqa: PLC0415

    return made_key()


def _now() -> float:
    import time  # noqa: PLC0415

    return time.time()
