"""Child jobs: implements `TaskContext.submit`, and the wait of a body for its children.

Rules
-----
- A child is identified by its task and a name: its id is "PARENT/TASK/NAME", and "PARENT/TASK/NAME~3" in the third
  round of a flow that begins anew (`task.again`). A later attempt or run of its task that
  submits it again gets the same job: a living child is joined, a completed one is not run again, a failed or cancelled
  one begins its next run, with the tasks that completed in its last one. A child that a person cancelled, or that
  failed permanently, stays ended until a person runs its parent again: the waiting body learns its outcome.
- If a job has replaced another one under its id, the other job's children do not count: each is replaced when a child
  of its name is submitted.
- A body that waits for a child lends its slot, and its time limit is suspended; it goes on when it has its slot again.
  A flow may be put to sleep meanwhile. A body that is made again only to be stopped does not submit an existing child
  again.
- A body may wait for several children at once: it counts as waiting until it waits for none.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...actors.kernel.idempotency import SUBMIT
from ...actors.messages.commands import Reply, Submit
from ...actors.messages.inputs import Message
from ...actors.records.entities import JobRecord
from ...actors.records.task import DurableWait
from ...actors.spec.limits import inheriting
from ...actors.spec.model import Workstream
from ...actors.spec.names import name_problem
from ...actors.tasks.task import spec_folder_of, spec_of
from ...actors.user_code import is_a, plain_text, shown
from ..cluster.ids import IdReservation, adopt
from ..commands.idempotency import NoOpAnswer, ReadEarlierRequest
from ..commands.inflight import InFlight
from ..dispatch.runners import RunnerPool
from ..dispatch.threads import in_thread
from ..engines.child_job import ChildJob
from ..engines.context import connection_of
from ..engines.from_thread import await_on_loop
from ..errors import JobExists
from ..functions.registry import LARGE, fingerprint_of, prepared
from ..handles.jobs import JobHandle, core_of
from ..handles.outcomes import Outcome

if TYPE_CHECKING:
    from ..engines.context import TaskContext
    from ..flows.flows import Flows
    from ..handles.services import Services
    from ..host import KernelHost

T = TypeVar("T")
_LOCAL = rb"(<locals>[^\"]*)#\d+"  # a function inside a function has another number in each attempt


class Children:
    """Submits and awaits the child jobs of running bodies."""

    def __init__(self, services: Services, host: KernelHost, runners: RunnerPool, flows: Flows) -> None:
        self.services = services
        self._host = host
        self._runners = runners
        self._flows = flows
        self._submitting = InFlight()  # by child id

    async def submit(
        self, context: TaskContext, workstream: Workstream, name: str, request_id: str | None = None
    ) -> ChildJob:
        """`TaskContext.submit`. request_id: as in `Runtime.submit`."""
        if not is_a(workstream, Workstream):
            raise TypeError(f"submit takes a Workstream, not {shown(workstream, 60)}")
        name = plain_text(name, "the name of a child job")
        if problem := name_problem(name):
            raise ValueError(f"{name!r:.80} cannot be the name of a child job: it {problem}")
        connection_of(context).keep_out_secrets(name, "the child job's name")
        job_id = f"{context.job_id}/{context.task}/{name}{self._round_of(context.token)}"
        self._flows.ready(context.token, connection_of(context))
        if self._flows.is_stopped(context.token) and await self.services.jobs.record_of(job_id) is not None:
            return ChildJob(self, job_id, context, await self.services.jobs.find(job_id))  # else it could run twice
        reservation = IdReservation(self.services.node, "job", job_id, await self._submitting.enter(job_id))
        sent, taken = False, True
        command: Callable[[Reply], Message] | None = None
        try:
            said, encoded = await self._prepared(context, workstream)
            spec = self._inheriting(context, said)

            async def before(_: ReadEarlierRequest) -> NoOpAnswer | None:
                nonlocal command
                command = await self._to_submit(context, spec, encoded, job_id, reservation)
                return NoOpAnswer(None) if command is None else None

            def make(reply: Reply) -> Message:
                nonlocal sent
                assert command is not None  # noqa: S101 - otherwise `before` has settled it
                sent = True
                reservation.heed(reply)
                return command(reply)

            try:
                await self.services.commands.give(
                    make, SUBMIT, job_id, request_id=request_id, first=before, over=reservation.answered
                )
            except Exception:
                taken = False
                raise
            finally:
                if not (sent and taken):  # a cancelled wait does not stop a sent command
                    self.services.bodies.release(spec)
        finally:
            if not sent:
                reservation.give_back()
        return ChildJob(self, job_id, context, await self.services.jobs.find(job_id))

    def submit_blocking(self, context: TaskContext, workstream: Workstream, name: str) -> ChildJob:
        """`TaskContext.submit_blocking`."""
        return self._blocking(context, lambda: self.submit(context, workstream, name))

    def _round_of(self, token: int) -> str:
        """The end of the ids of the children of a flow that has begun anew: they are others than those before."""
        kernel = self._host.kernel
        call = kernel.calls.get(token)
        task: Any = None if call is None else kernel.entities.get(call.key)  # a task: its body runs
        return f"~{task.record.rounds + 1}" if task is not None and task.record.rounds else ""

    async def _prepared(self, context: TaskContext, workstream: Workstream) -> tuple[Workstream, bytes]:
        services = self.services
        return await prepared(
            workstream, services.bodies, durable=services.journal.durable_medium, lifecycles=services.lifecycles,
            folder=spec_folder_of(self._host.kernel, context.token),
        )  # fmt: skip

    def _inheriting(self, context: TaskContext, said: Workstream) -> Workstream:
        """Add the workstream's inherited settings. Its functions are held in place of those of `said`."""
        parent = spec_of(self._host.kernel, context.token)
        spec = said if parent is None else inheriting(said, parent)
        if spec is not said:
            self.services.bodies.hold(spec)
            self.services.bodies.release(said)
        return spec

    async def _to_submit(
        self, context: TaskContext, spec: Workstream, said: bytes, job_id: str, held: IdReservation
    ) -> Callable[[Reply], Message] | None:
        """Make the command that submits the child; None if it exists already and goes on, or has completed.

        said: its JSON as it was submitted, without inherited settings: a child is compared by that.
        """
        services, token = self.services, context.token
        connection = connection_of(context)
        if connection.mask is not None:  # without folders: those are the program's, no body wrote them
            plain = msgspec.to_builtins(msgspec.structs.replace(spec, folder=None, cwd=None))
            connection.keep_out_secrets(plain, "the child job's specification")
        folder = spec.folder or spec_folder_of(self._host.kernel, token)
        fingerprint = fingerprint_of(_plain(said), folder)
        earlier = await held.reserve(lambda: services.jobs.record_of(job_id))
        past = earlier is not None and self._is_past(earlier)
        if earlier is not None and not past:
            from .same_workstream import compare  # noqa: PLC0415 - with the first child that is there already

            alike = await compare(services, earlier, spec, fingerprint, _plain)
            if not alike.same:
                moved = alike.moved is not None
                why = f". Only the places of its functions differ: {alike.moved}" if moved else alike.told
                raise JobExists(
                    f"there is a child job {job_id!r} already, with another workstream ({earlier.shown} now){why}. Use "
                    "another name, or submit the same workstream in every attempt."
                )
            if earlier.finished_at is None or earlier.state == "completed" or self._stays(earlier):
                return None
        if earlier is not None and services.node is not None:
            earlier = await services.jobs.ended(job_id) if await adopt(services.node, "job", job_id) else None
            if earlier is None:  # another node was faster
                return None
        loaded = None
        if earlier is not None and not past:
            from ..handles.reruns import load  # noqa: PLC0415 - child jobs are rarely replaced

            loaded = await load(services, earlier)
        encoded = await self._encoded(spec)

        def make(reply: Reply) -> Message:
            if loaded is None:
                return Submit(job_id, True, spec, encoded, fingerprint, reply, parent=token, replaced=earlier)
            now = msgspec.structs.replace(loaded, spec=spec, encoded=encoded)  # with the functions of this attempt
            return now.again(reply, reason="its parent submitted it again", parent=token)

        return make

    async def _encoded(self, spec: Workstream) -> bytes:
        """Encode a workstream as JSON; a large one in a thread, so that the event loop can go on."""
        if len(spec.tasks) > LARGE:
            return await in_thread("work", lambda: msgspec.json.encode(spec))
        return msgspec.json.encode(spec)

    def _stays(self, child: JobRecord) -> bool:
        """Whether a child stays ended without completion, because its parent's run goes on."""
        parent = self.services.jobs.living(child.parent_id or "")
        return child.final and parent is not None and parent.record.run == child.parent_run

    def _is_past(self, child: JobRecord) -> bool:
        """Whether a child belongs to a job that its parent has replaced. A new child of its name replaces it."""
        parent = self.services.jobs.living(child.parent_id or "")
        return parent is not None and child.finished_at is not None and child.parent_run < parent.record.first

    # -- waiting -------------------------------------------------------------------------------------------------------

    async def wait(self, context: TaskContext, child: ChildJob) -> Outcome:
        """`ChildJob.wait`."""
        self.services.check_here("a child job")
        self._flows.ready(context.token, connection_of(context))
        await self._flows.stop_here(context.token)
        return await self.wait_for(child.job, context.token)

    async def wait_for(self, job: JobHandle, token: int, lending: Callable[[int], object] | None = None) -> Outcome:
        """Wait for the child job by its handle. lending: called before the body's slot under `token` is lent."""
        self.services.check_here("a child job")
        core = core_of(job)
        if not job.ended and core.elsewhere:
            if lending is not None:
                lending(token)
            await self._flows.lent.while_waiting(token, job.wait)
        elif not job.ended:

            def listen(wake: Callable[[], object]) -> Callable[[], object]:
                if job.ended:  # meanwhile
                    wake()
                return core.when_over(wake)

            await self._flows.wait(DurableWait(None, "child", job.id), token, listen, lending, alone=False)
        return await job.wait()

    def wait_blocking(self, context: TaskContext, child: ChildJob) -> Outcome:
        """`ChildJob.wait_blocking`."""
        return self._blocking(context, child.wait)

    def state_of(self, context: TaskContext, child: ChildJob) -> str:  # noqa: ARG002 - here each has its handle
        """`ChildJob.state`."""
        return child.job.state

    # -- threads -------------------------------------------------------------------------------------------------------

    def _blocking(self, context: TaskContext, func: Callable[[], Awaitable[T]]) -> T:
        return await_on_loop(self._host.dispatcher.call_threadsafe, self._runners, func, connection_of(context))


def _plain(encoded: bytes) -> bytes:
    return re.sub(_LOCAL, rb"\1", encoded)
