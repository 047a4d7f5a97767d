"""What a journal says of a command that is about to be put into its inbox.

Rules:
- A key that was given to a command before is the same command, with the same answer, or is refused: as where a runtime
  has the journal. A command that was refused under it binds nothing.
- An event that the present state of a machine does not know is refused; where something else comes first, which may
  change that state (an event that waits in the inbox, one that is due), only what no state of it knows.
- `skip` and `retry` of a task are refused where its job lives, and the task stays as it is until somebody decides.
- `retry` of a job that completed is refused, unless what waits before it in the inbox may begin its next run. So is
  that of a job that lives, and stays as it is until somebody decides.
- An event at what the runtime itself runs is looked at as the verb that it is.
- A decision about what is not held, or whose time is over, is refused at once: nothing changes it meanwhile.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from .trouble import FAILED, Trouble

if TYPE_CHECKING:
    from ...actors.records.base import Record
    from ...actors.records.entities import ApprovalRecord, WorkstreamRecord
    from ...actors.records.task import TaskRecord
    from ..commands.wire_errors import Answered
    from ..journal.contract import InboxRow, Reader, Stored


def known(reader: Stored, row: InboxRow) -> Answered | bool:
    """Whether its key was given to it before: the answer, where it took effect by the inbox. Raises Trouble."""
    import msgspec  # noqa: PLC0415

    from ..commands.wire_errors import Answered  # noqa: PLC0415

    kept = reader.request(row.request_id)
    if kept is not None and kept.expires_at <= row.sent_at:
        kept = None
    for sent, text in reader.sent(row.request_id):
        answer = None if text is None else msgspec.json.decode(text, type=Answered)
        if answer is not None and (answer.refused is not None or kept is None):
            continue  # it binds nothing, or no more
        if _said(reader, sent) != _said(reader, row):
            raise _reused(row, f"{sent.verb} {sent.target}")
        return True if answer is None else answer
    if kept is not None and kept.row == 0 and _OPERATIONS.get(kept.operation, kept.operation) != _said(reader, row)[0]:
        raise _reused(row, kept.operation)
    return kept is not None


_OPERATIONS = {"ResetBreaker": "reset", "TripBreaker": "trip"}
"""Verbs of breakers, by what a key is bound to where a program has said them."""


def _said(reader: Reader, row: InboxRow) -> tuple[object, ...]:
    """What a row says. An event that is a verb says that."""
    meant = row
    with suppress(Trouble):
        meant = as_verb(reader, row) or row
    return meant.verb, meant.kind, meant.target, {name: value for name, value in meant.arguments.items() if value}


def as_verb(reader: Reader, row: InboxRow, shown: str = "") -> InboxRow | None:
    """The row itself; of an event at what the runtime itself runs, the verb that it is. None where only a runtime knows
    its lifecycle. Raises Trouble for an event that people may not fire, or that its state does not know.
    """
    from msgspec.structs import replace  # noqa: PLC0415

    from ...actors.machines.lifecycles import Lifecycles, UnknownLifecycle  # noqa: PLC0415
    from ...machines import InvalidTransitionError  # noqa: PLC0415
    from ..commands.verbs import VERBS  # noqa: PLC0415
    from ..handles.references import asked, parts_of, refused  # noqa: PLC0415

    if row.verb != "fire" or row.kind == "machine":
        return row
    said = dict(row.arguments)
    event = str(said.pop("event", ""))
    try:
        parts = parts_of(_parts(reader, row), Lifecycles().get)
    except UnknownLifecycle:
        return None
    try:
        asks = asked(parts, event, "")
        about = row.target.rpartition("/")[0] if row.kind == "task" else row.target
        waits = any(_is_about(one, about) for one in reader.inbox())  # it may change that state first
        if not (asks.decides or waits or any(part.knows(event) for part in parts)):
            raise refused(parts, event, "")
    except InvalidTransitionError as error:
        can = f"possible there: {', '.join(sorted(error.allowed))}" if error.allowed else "nobody fires any there"
        why = f" {error.advice}" if error.advice else ""
        raise Trouble(f"{event!r:.80} at {shown} is not possible: it is {error.state}; {can}.{why}", FAILED) from None
    verb = next(name for name, one in VERBS.items() if row.kind in one.messages and one.method == asks.verb)
    return replace(row, verb=verb, arguments={**said, **({"force": True} if asks.force else {})})


def _parts(reader: Reader, row: InboxRow) -> list[tuple[str, Record | None]]:
    """The records of what an event is for, and of what that passes it on to."""
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


def _reused(row: InboxRow, before: str) -> Trouble:
    return Trouble(
        f"The request id {row.request_id!r:.80} was given to another command before: {before:.200}. "
        "Use a new id for a new command, or send exactly what was sent under this one.",
        FAILED,
    )


def refuse_undecidable(reader: Reader, row: InboxRow, shown: str) -> bool:
    """Refuse a decision about what nobody can decide any more, or not yet. Raises Trouble.

    True where it is about an approval that a body asks for: one is held, whatever state its task is in.
    """
    from ...actors.records.entities import ApprovalRecord  # noqa: PLC0415

    about = _about(reader, row)
    name = row.arguments.get("approval")
    if name is not None and not about:
        raise Trouble(f"{row.verb} {shown} is not possible: it asks for no approval {name!r:.80}.", FAILED)
    held = [one for one in about if one.state == "held"]
    if name is not None and not held:
        raise Trouble(
            f"{row.verb} {shown} is not possible: its approval {name!r:.80} has ended ({about[-1].state}).", FAILED
        )
    asked = [one.name for one in held if isinstance(one, ApprovalRecord)]
    if len(held) > 1 and len(asked) == len(held):
        names = ", ".join(repr(one) for one in asked)
        raise Trouble(
            f"{row.verb} {shown} is not possible: say which approval (--approval); it asks for {names}.", FAILED
        )
    until = held[0].hold_until if len(held) == 1 else None
    if until is not None and until <= row.sent_at:
        from .words import due  # noqa: PLC0415

        raise Trouble(f"{row.verb} {shown} is not possible: the time for it was over at {due(until)}.", FAILED)
    if row.verb == "approve" and len(held) == 1 and (why := _why_not(reader, held[0], str(row.arguments["by"]))):
        raise Trouble(f"{row.verb} {shown} is not possible: {why}.", FAILED)
    return len(held) == 1 and len(asked) == 1


def _why_not(reader: Reader, held: TaskRecord | WorkstreamRecord | ApprovalRecord, by: str) -> str | None:
    """Why that person cannot approve it, as far as the journal says: who is in a team only a runtime can ask."""
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
        said = spec.hold if isinstance(held, WorkstreamRecord) else spec.tasks[held.index].hold
        if said is None:
            return None
        rule = said
    job, clauses = reader.job(held.job_id), clauses_of(rule)
    if job is not None and job.by is not None and person(job.by) == person(by) and not rule.self_approval:
        return f"{by} submitted it, and self-approval is off"
    if any(clause.team is not None for clause in clauses):
        return None
    if any(one.by is not None and person(one.by) == person(by) for one in held.decisions):
        return f"{by} has approved it already"
    if all(clause.person is not None and person(clause.person) != person(by) for clause in clauses):
        return f"{by} meets no clause; it waits for {', '.join(map(text_of, clauses))}"
    return None


def refuse_unknown_event(reader: Reader, row: InboxRow, shown: str) -> None:
    """Refuse an event that the state of a machine does not know. What its guards say, only a runtime can tell."""
    from ..journal.consistency import machine_of  # noqa: PLC0415

    record = reader.machine(row.target)
    machine = None if record is None else machine_of(reader, record)
    if record is None or machine is None or record.state not in machine.states:
        return
    allowed = machine.valid_events(record.state)
    due = record.due_at is not None and record.due_at <= row.sent_at
    before = due or any((one.kind, one.target) == (row.kind, row.target) for one in reader.inbox())
    if before and not machine.is_terminal(record.state):  # it is judged when it is taken
        allowed = frozenset(transition.event for transition in machine.transitions)
    if row.arguments["event"] not in allowed:
        possible = f"possible there: {', '.join(sorted(allowed))}" if allowed else "nothing leaves that"
        raise Trouble(
            f"{row.arguments['event']!r:.80} at {shown} is not possible: it is {record.state}; {possible}.", FAILED
        )


_STILL = frozenset({"pending", "held", "waiting", "queued", "circuit_open", "half_open"})
_STAYS = {"skip": _STILL - {"pending"}, "retry": frozenset({"pending", "held", "waiting"})}
"""States of tasks that a start alone does not end; those in which a task is, by verb, nothing that it is for."""


def refuse_under_way(reader: Reader, row: InboxRow, shown: str) -> None:
    """Refuse to skip what is not pending, or to retry what is not parked, in a job that lives, and to retry that job.

    Raises Trouble.

    Not where the job may have ended when it is taken: by what is due, a recovery, its parent, or what waits before it.
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
        raise Trouble(f"{row.verb} {shown} is not possible: it is {job.state}, and has not ended.", FAILED)
    can = ", ".join(commands_of("task", TASK.valid_events(state)))
    raise Trouble(f"{row.verb} {shown} is not possible: it is {state}; possible there: {can}.", FAILED)


def refuse_completed(reader: Reader, row: InboxRow, shown: str) -> None:
    """Refuse to run a whole job again that completed: only a task of it can be. Raises Trouble.

    Not where what waits in the inbox may have begun its next run by then.
    """
    job = reader.job(row.target) if row.kind == "job" else None
    if job is None or job.state != "completed" or any(_is_about(one, job.id) for one in reader.inbox()):
        return
    raise Trouble(
        f"{row.verb} {shown} is not possible: it is completed. `callboard retry {job.id}/TASK` runs a task of it anew.",
        FAILED,
    )


def _is_about(row: InboxRow, job_id: str) -> bool:
    """Whether a row of the inbox is about that job, or a task of it."""
    return (row.kind, row.target) == ("job", job_id) or (row.kind, row.target.rpartition("/")[0]) == ("task", job_id)


def _about(reader: Reader, row: InboxRow) -> list[TaskRecord | WorkstreamRecord | ApprovalRecord]:
    """The records that a decision may be about."""
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
