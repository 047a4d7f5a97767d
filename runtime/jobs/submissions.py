"""How jobs are submitted: their ids and keys, and what happens if the id is already taken.

Rules
-----
- Submissions under one id run one at a time, here and over all nodes. So two submissions never create two jobs, and
  only one of two submissions replaces an ended job.
- A job, its key (`request_id`) and the end of the job that it replaces are one commit: a reader finds either the old or
  the new job, complete.
- The key is looked up first: a repeated request returns its job, even if the id would be refused now. A submission that
  only joins a job journals nothing, so it is not kept.
- A job that has not ended is never replaced, nor a job in an archive, whose history is no longer in the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal, cast, get_args

import msgspec

from ...actors.jobs.job import JobActor
from ...actors.kernel.idempotency import SUBMIT
from ...actors.messages.commands import Reply, Submit
from ...actors.messages.inputs import Message
from ...actors.records.entities import Acknowledged, JobRecord, RequestRecord
from ...actors.spec.model import Workstream
from ...actors.spec.names import name_problem
from ...actors.spec.schema import short
from ...actors.user_code import is_a, plain, plain_text, shown
from ...machines import InvalidTransitionError
from ..cluster.ids import IdReservation
from ..commands.author import name_of
from ..commands.idempotency import NoOpAnswer, ReadEarlierRequest, RequestIdReused, check_request_id, id_of_key
from ..commands.inflight import InFlight
from ..errors import JobExists
from ..functions.registry import fingerprint_of, prepared
from ..journal.contract import ArchivedJob

if TYPE_CHECKING:
    from ..dispatch.clock import Ids
    from ..handles.jobs import JobHandle
    from ..handles.services import Services
    from ..host import KernelHost
    from .same_workstream import WorkstreamComparison

Existing = Literal["join", "refuse", "replace_ended"]
"""The handling of a job that already has the submitted id (`Runtime.submit`)."""
EXISTING: tuple[str, ...] = get_args(Existing)


class SubmitArguments(msgspec.Struct, frozen=True):
    """The checked arguments of a submission. id: None if an id must be made."""

    id: str | None
    by: str | None
    existing: Existing
    request_id: str | None


class Submitted(msgspec.Struct, frozen=True):
    """The job, and whether this submission created it."""

    job: JobHandle
    made: bool


class _Submission(msgspec.Struct):
    """A submission in flight."""

    asked: SubmitArguments
    spec: Workstream
    encoded: bytes
    fingerprint: str  # "" if the same workstream cannot be submitted again
    held: IdReservation | None = None  # the reservation of its id, if the caller gave the id
    replaced: JobRecord | None = None
    sent: bool = False


class Submissions:
    """Submits jobs to one runtime. handle: makes the handle of a job."""

    def __init__(self, services: Services, host: KernelHost, ids: Ids, handle: Callable[[JobActor], JobHandle]) -> None:
        self._services = services
        self._host = host
        self._ids = ids
        self._handle = handle
        self._in_flight = InFlight()  # the submissions in flight, by the ids that callers gave

    async def submit(self, workstream: Workstream, asked: SubmitArguments) -> Submitted:
        """`Runtime.submit`."""
        services = self._services
        spec, encoded = await prepared(
            workstream, services.bodies, durable=services.journal.durable_medium, lifecycles=services.lifecycles
        )
        one, taken = _Submission(asked, spec, encoded, ""), True
        try:
            if asked.id is not None:
                one.held = IdReservation(services.node, "job", asked.id, await self._in_flight.enter(asked.id))
                one.fingerprint = fingerprint_of(encoded, spec.folder)
            return await self._take(one)
        except Exception:
            taken = False
            raise
        finally:
            if not (one.sent and taken):  # a sent submission whose caller was cancelled may still be accepted
                services.bodies.release(spec)
            if not one.sent and one.held is not None:
                one.held.give_back()

    async def _take(self, one: _Submission) -> Submitted:
        asked = one.asked
        job_id = self._ids.new() if asked.id is None else asked.id

        def make(reply: Reply) -> Message:
            one.sent = True
            if one.held is not None:
                one.held.heed(reply)
            return Submit(
                job_id, asked.id is not None, one.spec, one.encoded, one.fingerprint, reply, asked.by,
                replaced=one.replaced,
            )  # fmt: skip

        try:
            answer: JobActor | JobHandle | RequestRecord = await self._services.commands.give(
                make,
                SUBMIT,
                (asked.id, asked.by, asked.existing),
                request_id=asked.request_id,
                first=None if one.held is None else partial(self._before, one, job_id, one.held),
                kept=_itself,
                over=None if one.held is None else one.held.answered,
            )
        except InvalidTransitionError:
            if one.replaced is None:
                raise
            raise await self._in_the_way(one, job_id) from None
        if isinstance(answer, RequestRecord):
            return Submitted(await self._as_before(one, answer), made=False)
        if isinstance(answer, JobActor):
            return Submitted(self._handle(answer), made=True)
        return Submitted(answer, made=False)

    async def _before(
        self, one: _Submission, job_id: str, held: IdReservation, known: ReadEarlierRequest
    ) -> RequestRecord | NoOpAnswer | None:
        """Check that the id is free, or find the job that has it. Raises JobExists."""
        services, asked = self._services, one.asked
        try:
            found = await held.reserve(partial(self._found, one, job_id))
        except JobExists:
            if (kept := await known()) is not None:  # the same request has created the job on another node
                return kept
            raise
        if found is None:
            return None
        if asked.existing == "join":
            return NoOpAnswer(await services.jobs.find(job_id))
        if services.node is not None:
            from ..handles.reruns import be_the_one  # noqa: PLC0415 - jobs are rarely replaced

            try:
                kept = await be_the_one(services, job_id, "replace", asked.request_id, known)
            except InvalidTransitionError:
                raise await self._in_the_way(one, job_id) from None
            if kept is not None:
                return kept
            found = await self._found(one, job_id)  # as it is now that no other node can change it
        one.replaced = found
        return None

    async def _found(self, one: _Submission, job_id: str) -> JobRecord | None:
        """The job of that id that the submission joins or replaces. Raises JobExists if it may do neither."""
        from .same_workstream import SAME, compare  # noqa: PLC0415 - with the first id that a caller gives

        services, existing = self._services, one.asked.existing
        record = await services.jobs.record_of(job_id)
        archived: list[ArchivedJob] = []
        if record is None:
            archived = await services.read(services.journal.reader.archived, job_id)
        comparison = SAME
        if record is not None and existing == "join":
            comparison = await compare(services, record, one.spec, one.fingerprint)
        durable = services.journal.durable_medium
        if (refused := taken(job_id, record, archived, comparison, existing, durable=durable)) is not None:
            raise refused
        return record

    async def _in_the_way(self, one: _Submission, job_id: str) -> JobExists:
        """Why an ended job could not be replaced: another command has meanwhile changed it."""
        try:
            record = await self._found(one, job_id)
        except JobExists as refused:
            return refused
        state = "" if record is None else f" ({record.shown} now)"
        return JobExists(
            f"job {job_id!r}{state} cannot be replaced now: another caller runs it again, or a part of it "
            "that did not stop still runs. Wait for its end, and submit this job again."
        )

    async def _as_before(self, one: _Submission, kept: RequestRecord) -> JobHandle:
        """The job of an earlier submission with the same key. Raises RequestIdReused for another workstream."""
        from .same_workstream import compared  # noqa: PLC0415 - with the first key that is used again

        services = self._services
        encoded = await services.read(services.journal.reader.spec, kept.spec)
        if encoded is not None and not (match := compared(services.bodies, encoded, one.spec)).same:
            raise RequestIdReused(
                f"The request id {kept.request_id!r:.80} was given with another workstream before{match.told}. Use a "
                "new id for a new job, or send exactly what was sent under this one."
            )
        return await services.jobs.find(msgspec.json.decode(kept.answer, type=Acknowledged).id)


def asked_of(job_id: str | None, by: str | None, existing: str, request_id: str | None) -> SubmitArguments:
    """Check the arguments of a submission. Raises ValueError and TypeError."""
    if job_id is not None:
        job_id = check_job_id(job_id)
    how = check_existing(existing, job_id)
    if request_id is not None:
        request_id = check_request_id(request_id)
        job_id = job_id or id_of_key("j_", request_id)
    return SubmitArguments(job_id, None if by is None else name_of(by), how, request_id)


def check_existing(existing: object, job_id: str | None) -> Existing:
    """Check `existing`. Raises ValueError for an invalid value, and for one that needs an id."""
    said = plain(existing)
    if not is_a(said, str) or said not in EXISTING:
        raise ValueError(f"existing is one of {', '.join(map(repr, EXISTING))}, not {shown(existing, 60)}")
    if said != "join" and job_id is None:
        raise ValueError(f"existing={said!r} is for a job that has the same id: give an id, too")
    return cast("Existing", said)


def check_job_id(job_id: str) -> str:
    """The id as a plain text. Raises ValueError if it cannot be a folder's name, TypeError if it is not a text."""
    job_id = plain_text(job_id, "a job's id")
    if not (0 < len(job_id) <= 128 and job_id.isascii() and all(c.isalnum() or c in "._-" for c in job_id)):
        raise ValueError(f"{short(job_id)} cannot be a job's id: use 1 to 128 of the characters A-Z a-z 0-9 . _ -")
    if job_id[0] in ".-":
        raise ValueError(f"{short(job_id)} cannot be a job's id: it must not begin with '.' or '-'")
    if problem := name_problem(job_id):
        raise ValueError(f"{short(job_id)} cannot be a job's id: it {problem}")
    return job_id


def taken(
    job_id: str,
    record: JobRecord | None,
    archived: Sequence[ArchivedJob],
    held: WorkstreamComparison,
    existing: Existing = "join",
    *,
    durable: bool = True,
) -> JobExists | None:
    """Why a workstream cannot be submitted under an id, according to the journal.

    held: the comparison with the existing workstream, if the submission would join it. durable: whether other
    processes can reach the journal.
    """
    if record is None:
        if not archived:
            return None
        was = archived[0]
        return JobExists(f"there was a job {job_id!r} ({was.state}), archived in {was.file}. Use another id.")
    if existing == "refuse":
        return JobExists(
            f"there is a job {job_id!r} already ({record.shown} now), and only a new one was to be submitted "
            "(existing='refuse'). Use another id."
        )
    if existing == "replace_ended":
        if record.finished_at is not None:
            return None
        return JobExists(
            f"there is a job {job_id!r} that has not ended ({record.shown} now), and only an ended job is replaced. "
            f"Wait for its end, or cancel it{f' (`callboard cancel {job_id}`)' if durable else ''}, and then submit "
            "this one."
        )
    if held.moved is not None:
        return JobExists(
            f"there is a job {job_id!r} already, submitted with the same workstream ({record.shown} now) except for "
            f"the places of its functions: {held.moved}. For another job, use another id."
        )
    if held.same:
        return None
    more = "" if record.finished_at is None else " To replace it by this one: existing='replace_ended'."
    return JobExists(
        f"there is a job {job_id!r} already, submitted with another workstream ({record.shown} now){held.told}. "
        f"Use another id, or submit exactly what was submitted under this one.{more}"
    )


def _itself(kept: RequestRecord) -> RequestRecord:
    return kept
