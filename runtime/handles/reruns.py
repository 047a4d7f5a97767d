"""Next runs of ended jobs: loads the job, and requests the run (DESIGN 5.15).

Rules
-----
- An ended job is not in memory: its record, its specification and its last run's tasks come from the journal.
- A command is judged by the state of the job at its arrival; of two commands at once one is refused. If the same
  command goes to two nodes with one key, it takes effect once: the key commits with the run, and the later one gets the
  same answer.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from ...actors.jobs.submissions import no_next_run
from ...actors.kernel.refusals import in_its_words
from ...actors.messages.commands import NextRun, Reply
from ...actors.messages.inputs import Message
from ...actors.records.entities import JobRecord, RequestRecord, WorkstreamRecord
from ...actors.records.message import MessageRecord
from ...actors.records.step import StepRecord, steps_from
from ...actors.records.task import TaskRecord
from ...actors.spec.model import Workstream
from ...machines.keywords import did_you_mean
from ..cluster.ids import adopt
from ..commands.idempotency import ReadEarlierRequest
from ..functions.registry import placed

if TYPE_CHECKING:
    from .services import Services


UNDECIDED = 30.0
"""Seconds for which a node may own an ended job before it commits the job's next run."""


class LoadedJob(msgspec.Struct):
    """An ended job."""

    job: JobRecord
    encoded: bytes
    spec: Workstream
    stream: WorkstreamRecord | None
    tasks: list[TaskRecord]
    messages: list[MessageRecord]  # unread
    steps: list[StepRecord] = []  # of the flow that shall run again from a step on

    def again(self, reply: Reply, **asked: Any) -> NextRun:
        """The message that requests the next run."""
        tasks, messages = tuple(self.tasks), tuple(self.messages)
        return NextRun(self.job, self.spec, self.encoded, self.stream, tasks, reply, messages, **asked)


async def load(services: Services, record: JobRecord) -> LoadedJob:
    """Load an ended job from the journal. Raises LookupError if its specification is no longer there."""
    reader = services.journal.reader
    encoded = await services.read(reader.spec, record.stream)
    if encoded is None:
        raise LookupError(f"the journal no longer has the specification of job {record.id!r}")
    spec = placed(msgspec.json.decode(encoded, type=Workstream))
    last = record.last_of(await services.read(reader.workstreams, record.id))
    tasks: list[TaskRecord] = [] if last is None else await services.read(reader.tasks, last.key)
    messages: list[MessageRecord] = await services.read(partial(reader.messages, record.id, unread=True))
    return LoadedJob(record, encoded, spec, last, tasks, messages)


async def _load_with_steps(services: Services, record: JobRecord, task: str | None, step: str | None) -> LoadedJob:
    """`load`, and the kept steps of a task of the last run if it shall run again from a step on."""
    loaded = await load(services, record)
    flow = next((one.flow for one in loaded.tasks if one.name == task), 0)
    if step is not None and flow:
        loaded.steps = await services.read(services.journal.reader.steps, flow)
    return loaded


async def run_again(
    services: Services,
    job_id: str,
    word: str,
    task: str | None,
    *,
    reason: str | None = None,
    by: str | None = None,
    from_step: str | None = None,
    request_id: str | None = None,
) -> None:
    """Start the next run of an ended job. Returns when this is durable.

    word: the user's verb. task: the target of the verb, if it is a task. from_step: the label of the step from which on
    that task runs again.

    Raises LookupError for an unknown job, task or step, InvalidTransitionError if the job has not ended, or if it
    completed and no task is named.
    """
    commands = services.commands
    record, loaded = await services.jobs.ended(job_id), None
    if record is not None:
        loaded = await _load_with_steps(services, record, task, from_step)
        _find(loaded.spec, task)
    again, skip = (None, task) if word == "skip" else (task, None)
    living = services.jobs.living(job_id)

    def dropped(of: LoadedJob) -> tuple[StepRecord, ...]:
        return () if from_step is None else tuple(steps_from(of.steps, from_step, f"task {task!r} of job {job_id!r}"))

    def refuse() -> Exception | None:
        state = living.record.state if living is not None else "" if record is None else record.state
        if loaded is not None and (state != "completed" or task):
            try:
                dropped(loaded)
            except LookupError as error:
                return error
            return None
        refusal, about = no_next_run(state, word), record if living is None else living.record
        return refusal if about is None else in_its_words(refusal, about, services.lifecycles)

    async def own(known: ReadEarlierRequest) -> RequestRecord | None:
        """Own the job among several nodes, to run it again. Returns the kept record if another node did this before."""
        nonlocal loaded
        if (kept := await be_the_one(services, job_id, word, request_id, known)) is not None:
            return kept
        again_ended = await services.jobs.ended(job_id)
        if again_ended is not None:
            loaded = await _load_with_steps(services, again_ended, task, from_step)
            dropped(loaded)
        return None

    def make(reply: Reply) -> Message:
        assert loaded is not None  # noqa: S101 - else it is refused
        gone = dropped(loaded)
        return loaded.again(reply, again=again, from_step=from_step, dropped=gone, skip=skip, reason=reason, by=by)

    why = (reason, by) if from_step is None else (reason, by, from_step)
    said = job_id, task, why  # the same payload as for a living job, so that the same key gets the same answer
    first = None if services.node is None else own
    await commands.give(make, word, said, request_id=request_id, refuse=refuse, first=first)


async def be_the_one(
    services: Services, job_id: str, word: str, request_id: str | None, known: ReadEarlierRequest
) -> RequestRecord | None:
    """Own an ended job of a shared journal, to run it again.

    Returns the kept record if the same command has taken effect on another node. Raises InvalidTransitionError if
    another command was faster.
    """
    from ..cluster.delays import Delays  # noqa: PLC0415 - only among nodes

    node, delays = services.node, Delays()
    assert node is not None  # noqa: S101 - without other nodes, no other node can own the job
    until, reader = node.host.monotonic() + UNDECIDED, services.journal.reader
    while not await adopt(node, "job", job_id, request_id):
        record: JobRecord | None = await services.read(reader.job, job_id)  # the key is committed with the job
        if request_id is not None and (kept := await known()) is not None:
            return kept
        lives = record is None or record.finished_at is None
        if request_id is None or lives or node.host.monotonic() >= until:
            raise no_next_run("running", word)
        await node.pause(delays())  # another node owns the job, and has not committed its command yet
    return None


def _find(spec: Workstream, name: str | None) -> None:
    names = [task.name for task in spec.tasks]
    if name is not None and name not in names:
        advice = did_you_mean(name, names) or f"it has: {', '.join(names[:20]) or 'none'}"
        raise LookupError(f"there is no task {name!r}; {advice}")
