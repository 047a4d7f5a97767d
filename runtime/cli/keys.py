"""Checks of a command before it is put into a journal's inbox.

Rules:
- If its key was given to a command before, it must be the same command, and gets the same answer; otherwise it is
  refused: as with a runtime. A key whose command was refused is free.
- An event that the present state of a machine does not have is refused. If something may change that state before (an
  event in the inbox, a due one), only an event that no state has is refused.
- `skip` and `retry` of a task are refused if its job is living, and no waiting decision may change the task.
- `retry` of a completed job is refused, unless an earlier command in the inbox may begin its next run; and so is that
  of a living job that no waiting decision may change. `retry` from a step on is refused if its task keeps no such step.
- An event for one of the runtime's own entities is checked as the equal verb.
- A decision about an entity that is not held, or is past its time limit, is refused at once.
"""

from __future__ import annotations

from contextlib import suppress
from shlex import quote
from typing import TYPE_CHECKING

from .command_errors import FAILED, CommandError
from .hints import hint

if TYPE_CHECKING:
    from ...actors.records.base import Record
    from ...actors.records.entities import ApprovalRecord, WorkstreamRecord
    from ...actors.records.task import TaskRecord
    from ..commands.wire_errors import CommandAnswer
    from ..journal.contract import InboxRow, Reader, Stored


def known(reader: Stored, row: InboxRow) -> CommandAnswer | bool:
    """Look up the command's key: an earlier answer, or whether it was used. Raises CommandError."""
    import msgspec  # noqa: PLC0415

    from ..commands.wire_errors import CommandAnswer  # noqa: PLC0415

    kept = reader.request(row.request_id)
    if kept is not None and kept.expires_at <= row.sent_at:
        kept = None
    for sent, text in reader.sent(row.request_id):
        answer = None if text is None else msgspec.json.decode(text, type=CommandAnswer)
        if answer is not None and (answer.refused is not None or kept is None):
            continue  # the sent command does not bind the key, or not any more
        if _said(reader, sent) != _said(reader, row):
            raise _reused(row, f"{sent.verb} {sent.target}")
        return True if answer is None else answer
    if kept is not None and kept.row == 0 and _OPERATIONS.get(kept.operation, kept.operation) != _said(reader, row)[0]:
        raise _reused(row, kept.operation)
    return kept is not None


_OPERATIONS = {"ResetBreaker": "reset", "TripBreaker": "trip"}
"""Verbs of breakers, by the operation that a program's key is bound to."""


def _said(reader: Reader, row: InboxRow) -> tuple[object, ...]:
    """Describe a command, to compare it. An event that equals a verb is described as that verb."""
    meant = row
    with suppress(CommandError):
        meant = as_verb(reader, row) or row
    return meant.verb, meant.kind, meant.target, {name: value for name, value in meant.arguments.items() if value}


def as_verb(reader: Reader, row: InboxRow, shown: str = "") -> InboxRow | None:
    """Return the equal verb of an event for one of the runtime's own entities; other rows unchanged.

    None if only a runtime knows the entity's lifecycle. Raises CommandError for an event that people may not fire, or
    that the present state does not have.
    """
    from msgspec.structs import replace  # noqa: PLC0415

    from ...actors.spec.lifecycles import Lifecycles, UnknownLifecycle  # noqa: PLC0415
    from ...machines import InvalidTransitionError  # noqa: PLC0415
    from ..commands.verbs import VERBS  # noqa: PLC0415
    from ..handles.references import asked, parts_of, refused  # noqa: PLC0415

    if row.verb != "fire" or row.kind == "machine":
        return row
    arguments = dict(row.arguments)
    event = str(arguments.pop("event", ""))
    try:
        parts = parts_of(_parts(reader, row), Lifecycles().get)
    except UnknownLifecycle:
        return None
    try:
        asks = asked(parts, event, "")
        about = row.target.rpartition("/")[0] if row.kind == "task" else row.target
        waits = any(_is_about(one, about) for one in reader.inbox())  # an earlier command may change the state
        if not (asks.decides or waits or any(part.knows(event) for part in parts)):
            raise refused(parts, event, "")
    except InvalidTransitionError as error:
        can = f"possible now: {', '.join(sorted(error.allowed))}" if error.allowed else "people can fire none now"
        why = f" {error.advice}" if error.advice else ""
        raise CommandError(
            f"{event!r:.80} at {shown} is not possible: it is {error.state}; {can}.{why}", FAILED
        ) from None
    verb = next(name for name, one in VERBS.items() if row.kind in one.messages and one.method == asks.verb)
    return replace(row, verb=verb, arguments={**arguments, **({"force": True} if asks.force else {})})


def _parts(reader: Reader, row: InboxRow) -> list[tuple[str, Record | None]]:
    """Return the records of an event's entity, and of its workstream."""
    if row.kind == "breaker":
        return [("breaker", next((one for one in reader.breakers() if row.target in {one.name, one.id}), None))]
    if row.kind == "worker":
        return [("worker", next((one for one in reader.workers() if one.name == row.target), None))]
    job_id, _, name = row.target.rpartition("/") if row.kind == "task" else (row.target, "", "")
    job, runs = reader.job(job_id), reader.workstreams(job_id)
    stream = runs[-1] if runs else None
    if not name:
        return [("job", job), ("workstream", stream)]
    tasks = reader.tasks(stream.key) if stream is not None else []
    return [("task", next((one for one in tasks if one.name == name), None))]


def _reused(row: InboxRow, before: str) -> CommandError:
    return CommandError(
        f"The request id {row.request_id!r:.80} was given to another command before: {before:.200}. "
        "Use a new id for a new command, or send exactly the command that was sent with this one.",
        FAILED,
    )


def refuse_undecidable(reader: Reader, row: InboxRow, shown: str) -> bool:
    """Refuse a decision that is not possible any more, or not yet. Raises CommandError.

    Returns whether the decision is about a body's approval, which is held in any state of its task.
    """
    from ...actors.records.entities import ApprovalRecord  # noqa: PLC0415

    about = _about(reader, row)
    name = row.arguments.get("approval")
    if name is not None and not about:
        raise CommandError(f"{row.verb} {shown} is not possible: it asks for no approval {name!r:.80}.", FAILED)
    holds = [one for one in about if one.state == "held"]
    if name is not None and not holds:
        raise CommandError(
            f"{row.verb} {shown} is not possible: its approval {name!r:.80} has ended ({about[-1].state}).", FAILED
        )
    asked = [one.name for one in holds if isinstance(one, ApprovalRecord)]
    if len(holds) > 1 and len(asked) == len(holds):
        names = ", ".join(repr(one) for one in asked)
        raise CommandError(
            f"{row.verb} {shown} is not possible: name the approval (--approval); it asks for {names}.", FAILED
        )
    until = holds[0].hold_until if len(holds) == 1 else None
    if until is not None and until <= row.sent_at:
        from .words import due  # noqa: PLC0415

        raise CommandError(f"{row.verb} {shown} is not possible: its time limit was {due(until)}.", FAILED)
    if row.verb == "approve" and len(holds) == 1 and (why := _why_not(reader, holds[0], str(row.arguments["by"]))):
        raise CommandError(f"{row.verb} {shown} is not possible: {why}.", FAILED)
    return len(holds) == 1 and len(asked) == 1


def _why_not(reader: Reader, held: TaskRecord | WorkstreamRecord | ApprovalRecord, by: str) -> str | None:
    """Say why a person cannot approve, as far as the journal knows. Only a runtime knows a team's members."""
    import msgspec  # noqa: PLC0415

    from ...actors.records.entities import ApprovalRecord, WorkstreamRecord  # noqa: PLC0415
    from ...actors.spec.model import Workstream  # noqa: PLC0415
    from ...actors.spec.names import person  # noqa: PLC0415
    from ...actors.tasks.holds import clauses_of, text_of  # noqa: PLC0415

    if isinstance(held, ApprovalRecord):
        rule = held.rule
    else:
        run = held.key if isinstance(held, WorkstreamRecord) else held.workstream
        spec = msgspec.json.decode(reader.spec(run) or b"{}", type=Workstream)
        hold = spec.hold if isinstance(held, WorkstreamRecord) else spec.tasks[held.index].hold
        if hold is None:
            return None
        rule = hold
    job, clauses = reader.job(held.job_id), clauses_of(rule)
    if job is not None and job.by is not None and person(job.by) == person(by) and not rule.self_approval:
        return f"{by} submitted it, and self-approval is not allowed"
    if any(clause.team is not None for clause in clauses):
        return None
    if any(one.by is not None and person(one.by) == person(by) for one in held.decisions):
        return f"{by} has already approved it"
    if all(clause.person is not None and person(clause.person) != person(by) for clause in clauses):
        return f"{by} is none of the approvers; it waits for {', '.join(map(text_of, clauses))}"
    return None


def refuse_unknown_event(reader: Reader, row: InboxRow, shown: str) -> None:
    """Refuse an event that the machine's state does not have. Only a runtime can check its guards."""
    from ..journal.consistency import machine_of  # noqa: PLC0415

    record = reader.machine(row.target)
    machine = None if record is None else machine_of(reader, record)
    if record is None or machine is None or record.state not in machine.states:
        return
    allowed = machine.valid_events(record.state)
    due = record.due_at is not None and record.due_at <= row.sent_at
    before = due or any((one.kind, one.target) == (row.kind, row.target) for one in reader.inbox())
    if before and not machine.is_terminal(record.state):  # the runtime decides when it takes the event
        allowed = frozenset(transition.event for transition in machine.transitions)
    if row.arguments["event"] not in allowed:
        possible = f"possible now: {', '.join(sorted(allowed))}" if allowed else "no event leaves that state"
        raise CommandError(
            f"{row.arguments['event']!r:.80} at {shown} is not possible: it is {record.state}; {possible}.", FAILED
        )


_STILL = frozenset({"pending", "held", "waiting", "queued", "circuit_open", "half_open"})
_STAYS = {"skip": _STILL - {"pending"}, "retry": frozenset({"pending", "held", "waiting"})}
"""States of tasks that a mere start does not change, and by verb, those in which the verb is not possible."""


def refuse_ended(reader: Reader, row: InboxRow, shown: str) -> None:
    """Refuse a message to an ended job. Raises CommandError."""
    job = reader.job(row.target.rpartition("/")[0] if row.kind == "task" else row.target)
    if job is not None and job.finished_at is not None:
        raise CommandError(f"send {shown} is not possible: the job is {job.shown}, and receives nothing more.", FAILED)


def refuse_under_way(reader: Reader, row: InboxRow, shown: str) -> None:
    """Refuse `skip` and `retry` of a task in a state that does not allow it.

    `skip` needs a pending task, `retry` a parked one, in a living job.

    Also refuses `retry` of that job. Raises CommandError, unless the job may have ended when the command is taken: by a
    due time, a recovery, its parent, or an earlier command.
    """
    from ...machines.builtin.task import TASK  # noqa: PLC0415
    from ..commands.verbs import commands_of  # noqa: PLC0415

    job_id, _, name = row.target.rpartition("/") if row.kind == "task" else (row.target, "", "")
    job = reader.job(job_id)
    if job is None or job.finished_at is not None or job.parent_id is not None:
        return
    stream = job.last_of(reader.workstreams(job_id))
    if stream is None:
        return
    tasks = reader.tasks(stream.key)
    state = next((one.state for one in tasks if one.name == name and one.published is None), None)
    if row.kind == "task" and (state is None or state not in _STAYS[row.verb]):
        return
    if stream.state not in {"held", "ready", "executing", "paused"}:
        return
    due = [stream.deadline_at, stream.due_at, job.due_at, *(one.due_at for one in tasks)]
    if any(at is not None and at <= row.sent_at for at in due):
        return
    if any(one.finished_at is None and one.state not in _STILL for one in tasks):
        return
    if any(one.kind in {"job", "task", "breaker"} for one in reader.inbox()):
        return
    if state is None:
        raise CommandError(f"{row.verb} {shown} is not possible: it is {job.state}, and has not ended.", FAILED)
    can = ", ".join(commands_of("task", TASK.valid_events(state)))
    raise CommandError(f"{row.verb} {shown} is not possible: it is {state}; possible now: {can}.", FAILED)


def refuse_completed(reader: Reader, row: InboxRow, shown: str) -> None:
    """Refuse `retry` of a whole completed job: only its tasks can be retried. Raises CommandError.

    It is not refused if an earlier command in the inbox may begin the job's next run.
    """
    job = reader.job(row.target) if row.kind == "job" else None
    if job is None or job.state != "completed" or any(_is_about(one, job.id) for one in reader.inbox()):
        return
    raise CommandError(
        f"{row.verb} {shown} is not possible: it is completed. "
        f"{hint(f'retry {quote(job.id)}/TASK')} runs a task again.",
        FAILED,
    )


def refuse_unknown_step(reader: Reader, row: InboxRow, shown: str) -> None:
    """Refuse `retry` from a step on that its task does not keep. Raises CommandError.

    It is not refused if an earlier command in the inbox may begin the job's next run.
    """
    from ...actors.records.step import steps_from  # noqa: PLC0415 - `--help` imports no actors

    label = row.arguments.get("from_step")
    if label is None:
        return
    if row.kind == "job":
        raise CommandError(
            f"{row.verb} {shown} is not possible: --from-step is a step of one task, so name it: JOB/TASK."
        )
    job_id, _, name = row.target.rpartition("/")
    job = reader.job(job_id)
    last = None if job is None else job.last_of(reader.workstreams(job_id))
    if any(_is_about(one, job_id) for one in reader.inbox()):
        return
    flows = [task.flow for task in ([] if last is None else reader.tasks(last.key)) if task.name == name and task.flow]
    try:
        steps_from(reader.steps(flows[0]) if flows else [], label, "it")
    except LookupError as error:
        raise CommandError(f"{row.verb} {shown} is not possible: {error.args[0]}.", FAILED) from None


def _is_about(row: InboxRow, job_id: str) -> bool:
    """Whether a row of the inbox is about that job, or one of its tasks."""
    return (row.kind, row.target) == ("job", job_id) or (row.kind, row.target.rpartition("/")[0]) == ("task", job_id)


def _about(reader: Reader, row: InboxRow) -> list[TaskRecord | WorkstreamRecord | ApprovalRecord]:
    """Return the records that a decision may be about."""
    job_id, _, task = ("", "", "") if row.kind == "job" else row.target.rpartition("/")
    job = reader.job(job_id or row.target)
    last = None if job is None else job.last_of(reader.workstreams(job.id))
    if last is None:
        return []
    if not task:
        return [last]
    name = row.arguments.get("approval")
    asked = [one for one in reader.approvals(last.key) if one.task_id.rpartition("/")[2] == task]
    if name is not None:
        return [one for one in asked if one.name == name]
    return [*(one for one in reader.tasks(last.key) if one.name == task), *asked]
