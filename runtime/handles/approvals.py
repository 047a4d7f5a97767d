"""Pending approvals, as applications see them, and the members of teams.

Rules
-----
- The members of a team are looked up before the actor gets the decision, since the look-up may take time. The function
  that the specification names is called with the team's name: an async function on the loop, a plain one in a thread.
- If the function raises, is not found, returns no list of names, or takes over `ASKED` seconds, the person counts as
  "not in the team". A notice reports this, and the decision keeps it (`unchecked`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import anyio
import msgspec
from msgspec.structs import replace

from ...actors.jobs.job import JobActor
from ...actors.messages.commands import Approve
from ...actors.records.base import Decision
from ...actors.records.entities import ApprovalRecord, JobRecord, WorkstreamRecord
from ...actors.records.task import TaskRecord
from ...actors.spec.model import Approval, Workstream
from ...actors.spec.names import person
from ...actors.tasks.holds import HELD, DecisionRefused, EntityWithHold, clauses_of, text_of, unmet_of
from ...actors.tasks.task import TaskActor
from ...actors.times import seconds
from ...actors.user_code import called, is_a, shown
from ...machines import Event
from ..dispatch.body_context import awaited
from ..dispatch.threads import in_thread
from ..functions.registry import BodyNotFound, located
from ..functions.signatures import is_async, takes_context

if TYPE_CHECKING:
    from ...actors.kernel.entity import Entity
    from ..functions.registry import Bodies
    from ..host import KernelHost

HeldRecord = TaskRecord | WorkstreamRecord | ApprovalRecord
MOST_PEOPLE = 100_000
"""The most members of a team: its function may return an endless iterator."""
ASKED = 10.0
"""The limit in seconds for the function that returns the members of a team."""


class PendingApproval(msgspec.Struct, frozen=True, kw_only=True):
    """A task, workstream or running body that waits for an approval. Times are UTC epoch seconds.

    kind: "task", "workstream", or "approval" (a running body of `task` waits for an approval of that name). missing:
    the clauses that are not met yet, in words; `people` of these names, members of these `teams`, or `anybody` may meet
    them. approved_by: the people who have approved so far; decisions: the times and reasons of their decisions.
    wait_until: the end of a wait that runs at the same time. submitted_by: the submitter of the job, if known;
    self_approval: whether the submitter may approve. job_name: the name of the submitted workstream. left_at: when the
    body gave up its wait (a time limit of its own; it may ask again); None: it waits.
    """

    kind: str
    entity_id: str
    job_id: str
    task: str | None
    approval: str | None
    missing: list[str]
    approved_by: list[str]
    since: float
    expires_at: float
    wait_until: float | None = None
    submitted_by: str | None = None
    self_approval: bool = False
    job_name: str = ""
    people: list[str] = []
    teams: list[str] = []
    anybody: bool = False
    decisions: tuple[Decision, ...] = ()
    left_at: float | None = None

    def not_for(self, name: str) -> str | None:
        """Why the person of that name may not decide, in words; None if they may.

        It is also None if the approval has teams: the members of a team are looked up at the decision.
        """
        asked = person(name)
        if asked in map(person, self.approved_by):
            return "you have approved it"
        if self.submitted_by is not None and asked == person(self.submitted_by) and not self.self_approval:
            return "you submitted it, and self-approval is off"
        if self.anybody or self.teams or asked in map(person, self.people):
            return None
        return f"it waits for {', '.join(self.missing)}"


def pending_of(job: JobActor) -> Iterator[PendingApproval]:
    """The pending approvals of a job that lives here."""
    stream = job.stream
    if stream is None:
        return
    entities: list[EntityWithHold] = [stream]
    for task in stream.tasks:
        entities.append(task)
        if task.asks is not None:
            entities += task.asked
    for entity in entities:
        record: HeldRecord = entity.record
        if record.state == HELD:
            yield _pending(record, entity.approval, job.record)


def pending_in(
    job: JobRecord,
    run: WorkstreamRecord | None,
    tasks: Sequence[TaskRecord],
    asked: Sequence[ApprovalRecord],
    encoded: bytes | None,
) -> Iterator[PendingApproval]:
    """The pending approvals of a job on another node, from its records and its specification."""
    if run is None or encoded is None:
        return
    about: list[HeldRecord] = [run, *tasks, *asked]
    undecided = [one for one in about if one.state == HELD]
    spec = msgspec.json.decode(encoded, type=Workstream) if undecided else None
    for record in undecided:
        rule: Approval | None = None
        if isinstance(record, ApprovalRecord):
            rule = record.rule
        elif spec is not None:
            rule = spec.hold if isinstance(record, WorkstreamRecord) else spec.tasks[record.index].hold
        if rule is not None:
            yield _pending(record, rule, job)


def _pending(record: HeldRecord, rule: Approval, job: JobRecord) -> PendingApproval:
    expires = record.hold_until or 0.0
    unmet = unmet_of(clauses_of(rule), record.decisions)
    left = [clause for clause, _ in unmet]
    return PendingApproval(
        kind=record.kind, entity_id=record.id, job_id=record.job_id,
        task=_task_of(record), approval=record.name if isinstance(record, ApprovalRecord) else None,
        missing=[text_of(clause, given) for clause, given in unmet],
        approved_by=[one.by for one in record.decisions if one.by is not None],
        since=expires - seconds(rule.expires), expires_at=expires, wait_until=record.wait_until,
        submitted_by=job.by, self_approval=rule.self_approval, job_name=job.name,
        people=[clause.person for clause in left if clause.person is not None],
        teams=[clause.team for clause in left if clause.team is not None],
        anybody=any(clause.person is None and clause.team is None for clause in left),
        decisions=record.decisions, left_at=record.left_at if isinstance(record, ApprovalRecord) else None,
    )  # fmt: skip


def _task_of(record: HeldRecord) -> str | None:
    if isinstance(record, ApprovalRecord):
        return record.task_id.rpartition("/")[2]
    return record.name if isinstance(record, TaskRecord) else None


async def with_teams(message: Approve, entity: Entity[Any] | None, bodies: Bodies, host: KernelHost) -> Approve:
    """The approval, with those teams of the hold that its author is a member of."""
    decided: EntityWithHold | None = None
    if isinstance(entity, JobActor):
        decided = entity.stream
    elif isinstance(entity, TaskActor):
        with suppress(DecisionRefused):  # the actor raises it itself
            decided = entity.decider(message.approval, Event.APPROVE)
    if decided is None or decided.record.state != HELD:
        return message
    stream = entity.stream if isinstance(entity, JobActor | TaskActor) else None
    folder = None if stream is None else stream.spec.folder
    asked = {clause.team: clause.members for clause in clauses_of(decided.approval) if clause.team is not None}
    names: dict[str, set[str]] = {}
    record = decided.record

    async def ask(team: str, members: Any) -> None:
        try:
            with anyio.fail_after(ASKED):
                names[team] = await _members(bodies.callable_body(located(members, folder, program=False)), team)
        except Exception as error:  # whatever the application's function raises
            text = f"who is in team {team!r} could not be found out by {shown(members)}: {_why_unknown(error)}"
            raised = None if is_a(error, BodyNotFound) or is_a(error, TimeoutError) else error
            host.notice(
                "team_unknown", "warning", text, kind=record.kind, entity_id=record.id, job_id=record.job_id,
                raised=raised, team=team, by=message.by,
            )  # fmt: skip

    async with anyio.create_task_group() as asking:  # together they take as long as the slowest
        for team, members in asked.items():
            asking.start_soon(ask, team, members)
    teams = tuple(team for team in asked if person(message.by) in names.get(team, ()))
    return replace(message, teams=teams, unchecked=tuple(team for team in asked if team not in names))


def _why_unknown(error: Exception) -> str:
    if is_a(error, BodyNotFound):
        return str(error)  # our own text: where the function is, and what to do
    return f"it took over {ASKED:g} s" if is_a(error, TimeoutError) else shown(error)


async def _members(func: Callable[..., Any], team: str) -> set[str]:
    args = (team,) if takes_context(func) else ()
    if is_async(func):
        return called(_names_in, await awaited(func, *args))
    answer = await in_thread("people", partial(_names_by, func, args), abandon=True)
    if isinstance(answer, tuple):
        raise answer[0]
    return answer


def _names_by(func: Callable[..., Any], args: tuple[str, ...]) -> set[str] | tuple[Exception]:
    """The names, or the raised error as a value.

    The error does not leave the thread by `raise`: event loops inspect raised errors, and would lose an error that lies
    about its class.
    """
    try:
        return called(lambda: _names_in(func(*args)))
    except Exception as error:
        return (error,)


def _names_in(said: object) -> set[str]:
    if isinstance(said, str) or not isinstance(said, Iterable):
        raise TypeError(f"it returned {shown(said, 60)}, and not the names of people")
    names = {person(name) for name in islice(cast("Iterable[str]", said), MOST_PEOPLE + 1)}
    if len(names) > MOST_PEOPLE:
        raise ValueError(f"it returned more than {MOST_PEOPLE:,} names")
    return names
