"""Further runs of jobs that have ended: what is loaded of them, and asked for (DESIGN 5.15).

Rules
-----
- A job that has ended is not in memory: its record, its specification and its last run's tasks come from the journal.
- A command is judged by what the job is when it is given; of two at once one is refused. The same one, given to two
  nodes under one key, is one: the key commits with the run, and whoever comes later gets the answer of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ...actors.jobs.submissions import no_next_run
from ...actors.machines.refusals import in_its_words
from ...actors.messages.commands import NextRun, Reply
from ...actors.messages.inputs import Message
from ...actors.records.entities import JobRecord, RequestRecord, WorkstreamRecord
from ...actors.records.task import TaskRecord
from ...actors.spec.model import Workstream
from ...actors.spec.schema import did_you_mean
from ..cluster.ids import adopt
from ..cluster.node_context import Delays
from ..functions.registry import placed
from .idempotency import Known

if TYPE_CHECKING:
    from ..services import RuntimeServices


UNDECIDED = 30.0
"""Seconds for which a node may have taken a job, to run it again, without saying what it does."""


class Loaded(msgspec.Struct):
    """An ended job."""

    job: JobRecord
    encoded: bytes
    spec: Workstream
    stream: WorkstreamRecord | None
    tasks: list[TaskRecord]

    def again(self, reply: Reply, **asked: Any) -> NextRun:
        """The message that has it run again."""
        return NextRun(self.job, self.spec, self.encoded, self.stream, tuple(self.tasks), reply, **asked)


async def load(services: RuntimeServices, record: JobRecord) -> Loaded:
    """What the journal holds of an ended job. Raises LookupError where it no longer has its specification."""
    reader = services.journal.reader
    encoded = await services.read(reader.spec, record.stream)
    if encoded is None:
        raise LookupError(f"the journal no longer has the specification of job {record.id!r}")
    spec = placed(msgspec.json.decode(encoded, type=Workstream))
    last = record.last_of(await services.read(reader.workstreams, record.id))
    tasks: list[TaskRecord] = [] if last is None else await services.read(reader.tasks, last.key)
    return Loaded(record, encoded, spec, last, tasks)


async def run_again(
    services: RuntimeServices,
    job_id: str,
    word: str,
    task: str | None,
    *,
    reason: str | None = None,
    by: str | None = None,
    request_id: str | None = None,
) -> None:
    """Have an ended job run again; returns when that is durable. word: the user's verb. task: the one that it is about.

    Raises LookupError for a job or task that is not there, InvalidTransitionError for a job that has not ended, and for
    one that completed where no task is named.
    """
    commands = services.commands
    record, loaded = await services.jobs.ended(job_id), None
    if record is not None:
        loaded = await load(services, record)
        _find(loaded.spec, task)
    again, skip = (None, task) if word == "skip" else (task, None)
    living = services.jobs.living(job_id)

    def refuse() -> Exception | None:
        state = living.record.state if living is not None else "" if record is None else record.state
        if loaded is not None and (state != "completed" or task):
            return None
        refusal, about = no_next_run(state, word), record if living is None else living.record
        return refusal if about is None else in_its_words(refusal, about, services.lifecycles)

    async def own(known: Known) -> RequestRecord | None:
        """Of several nodes, be the one that runs it again; and see what it has come to, if others did so before."""
        nonlocal loaded
        if (kept := await be_the_one(services, job_id, word, request_id, known)) is not None:
            return kept
        again_ended = await services.jobs.ended(job_id)
        if again_ended is not None:
            loaded = await load(services, again_ended)
        return None

    def make(reply: Reply) -> Message:
        assert loaded is not None  # noqa: S101 - else it is refused
        return loaded.again(reply, again=again, skip=skip, reason=reason, by=by)

    said = job_id, task, (reason, by)  # as a living job is told it, so that the same key gets the same answer
    first = None if services.seat is None else own
    await commands.give(make, word, said, request_id=request_id, refuse=refuse, first=first)


async def be_the_one(
    services: RuntimeServices, job_id: str, word: str, request_id: str | None, known: Known
) -> RequestRecord | None:
    """Own an ended job of a journal that nodes share, to run it again. Returns what is kept of the command where it was
    given to another node, too, and has taken effect there. Raises InvalidTransitionError where another command was
    faster.
    """
    seat, delays = services.seat, Delays()
    assert seat is not None  # noqa: S101 - else it is nobody else's
    until, reader = seat.host.monotonic() + UNDECIDED, services.journal.reader
    while not await adopt(seat, "job", job_id, request_id):
        record: JobRecord | None = await services.read(reader.job, job_id)  # its key is committed with it
        if request_id is not None and (kept := await known()) is not None:
            return kept
        lives = record is None or record.finished_at is None
        if request_id is None or lives or seat.host.monotonic() >= until:
            raise no_next_run("running", word)
        await seat.pause(delays())  # another node has it, and has not committed yet what it does
    return None


def _find(spec: Workstream, name: str | None) -> None:
    names = [task.name for task in spec.tasks]
    if name is not None and name not in names:
        advice = did_you_mean(name, names) or f"it has: {', '.join(names[:20]) or 'none'}"
        raise LookupError(f"there is no task {name!r}; {advice}")
