"""One thread that manages workers on Ray: it creates actors, sends them orders, reads from them, and ends them.

The stages of an actor are described in `worker_actor.py`, its messages in `wire.py`.

Rules:
- All simultaneous orders for an actor are sent in one call; one call that is always open returns its messages. So a
  thousand running bodies cost few calls of Ray's.
- A call that could not be delivered is repeated under its number, until Ray reports that the actor has ended.
- If a stopped call does not end, its actor is killed, if nothing else runs there. Otherwise the call is given up, and
  the actor takes no new calls and ends with the rest of its calls.
- Ray reports the end of an actor or its node at once, but never a frozen one: so actors are probed (`probe`).
- Actors that do not answer are observed: all actors of a node together, on a few nodes at a time. However many are
  busy, the result is reported well within a lease.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

import msgspec

from ...calling import Outcome
from ...functions.main_program import began_in, own_main
from ..context import Checkpoint
from ..shortage import is_shortage
from ..workers.engine import Post, WorkerEngine
from ..workers.pool_member import GONE, NEVER_BEGUN, NOT_IN_TIME, TERMINATED
from ..workers.wire import BodyRequest, Heartbeat, RequestAnswer, RequestWithdrawn, ShownFrame, Unpacker, packed
from .cluster import RayTrouble, RayUnavailable, ray_thread
from .connection import Connection
from .wire import ActorReady, CallEnd, FromActor, OutputPart, Stop, Welcome
from .worker_actor import ActorMember, RayJob

if TYPE_CHECKING:
    from ....actors.spec.model import Worker

_AGAIN = 0.5  # seconds before an undelivered call is repeated
_LOOK = 5.0  # seconds between two searches for a node that could hold a worker
_NODES = 8  # maximum of nodes whose actors are observed at the same time
_KILLING = 10.0  # seconds that Ray has to end an actor
_FORCED = 3.0  # seconds that a forced end has
_UNKILLABLE = 7.0  # seconds beyond its grace that a process or command has
_DONE_FOR = frozenset({"killed", "over"})


class ActorPool:
    """The thread. Any thread may call its public methods."""

    def __init__(
        self,
        engine: WorkerEngine[Any, Any],
        post: Post,
        closed: Callable[[], None],
        cluster: Connection,
        *,
        spec_of: Callable[[str], Worker | None],
        environment: Mapping[str, str],
        path: list[str],
        argv: list[str],
        lease: float,
    ) -> None:
        self._engine = engine
        self._post = post
        self._tell_closed = closed
        self._cluster = cluster
        self._spec_of = spec_of
        self._environment = dict(environment)
        self._path, self._argv = path, argv
        self._lease = lease
        self._calls = ray_thread()
        self._orders: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._members: set[ActorMember] = set()  # members whose actors have not ended
        self._full: dict[ActorMember, None] = {}  # members with frames to send
        self._unseen: dict[str, list[ActorMember]] = {}  # members to observe, by node
        self._looked_at: set[str] = set()  # nodes that are being observed
        self._closing = False
        self._closed = False
        self._decode = msgspec.msgpack.Decoder(FromActor).decode
        Thread(target=self._run, name="callboard-ray", daemon=True).start()

    def open_member(self, member: ActorMember) -> None:
        """Create an actor for the member, with the resources that its worker requests."""
        if (spec := self._spec_of(member.worker)) is not None:
            member.resources, member.labels = dict(spec.resources), dict(spec.labels)
        self._order(self._open, member)

    def begin(self, job: RayJob) -> None:
        """Run the job in its member."""
        self._order(self._begin, job.member, job)

    def halt(self, job: RayJob, *, force: bool) -> None:
        """Make the job end: by asking it, within its grace, or (`force`) at once."""
        self._order(partial(self._halt, force=force), job.member, job)

    def answer(self, job: RayJob, answered: RequestAnswer) -> None:
        """Send the job the answer to its question, if it still runs."""
        self._order(self._answer, job.member, job, answered)

    def probe(self, member: ActorMember) -> None:
        """Probe the member's worker."""
        self._order(self._probe, member)

    def stop(self, member: ActorMember, deadline: float) -> None:
        """End the member's actor after its running calls, at the latest in `deadline` seconds."""
        self._order(self._retire, member, deadline)

    def kill(self, member: ActorMember) -> None:
        """Kill the member's actor; its jobs are lost."""
        self._order(self._end_member, member, TERMINATED)

    def park(self, job: RayJob) -> bool:  # noqa: ARG002 - the same for every job
        """Do nothing: an actor runs other calls while a body that lends its slot waits there."""
        return False

    def renew(self, member: ActorMember) -> None:
        """Do nothing: an actor stays as long as its worker."""

    def close(self) -> None:
        """Kill the remaining actors, close the connection, and end."""
        self._orders.put(self._close)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _order(self, step: Callable[..., None], member: ActorMember, *args: Any) -> None:
        self._orders.put(lambda: self._guarded(step, member, *args))

    def _guarded(self, step: Callable[..., None], member: ActorMember, *args: Any) -> None:
        try:
            step(member, *args)
        except Exception as error:  # an error about one member ends only that member
            self._lose(member, f"its actor could not be used: {type(error).__name__}: {error}")

    def _run(self) -> None:
        while not self._closed:
            try:
                self._orders.get(timeout=self._patience())()
                while True:  # take all orders that are there before sending
                    self._orders.get_nowait()()
            except Empty:
                pass
            full, self._full = self._full, {}
            for member in full:
                self._guarded(self._push, member)
            self._look_at_nodes()
            now = time.monotonic()
            for member in list(self._members):
                if member.due is not None and member.due <= now:
                    self._guarded(self._act_on_due_time, member)
                for job in [job for job in member.jobs.values() if job.due is not None and job.due <= now]:
                    self._guarded(self._end_by_force, member, job)
        self._tell_closed()

    def _patience(self) -> float | None:
        dues = [member.due for member in self._members if member.due is not None]
        dues += [job.due for member in self._members for job in member.jobs.values() if job.due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _close(self) -> None:
        self._closing = True
        for member in list(self._members):
            member.closing = True
            self._kill(member)
        self._disconnect_at_last()

    def _disconnect_at_last(self) -> None:
        """Disconnect, once the connection is unused: an observation in progress would make Ray create another one."""
        if not self._closing or self._members or self._looked_at:
            return
        self._calls.do(self._cluster.disconnect, lambda _value, _error: self._orders.put(self._finish))

    def _finish(self) -> None:
        self._closed = True

    # -- actors --------------------------------------------------------------------------------------------------------

    def _open(self, member: ActorMember) -> None:
        if member.dead or member.stage in _DONE_FOR:
            return
        self._members.add(member)
        member.due = None
        self._calls.do(partial(self._make, member), lambda _, error: self._order(self._made, member, error))

    def _make(self, member: ActorMember) -> None:
        """In Ray's thread: find a node for the actor, and create it."""
        if member.dead or self._closing:
            return
        try:
            self._cluster.connect()
        except RayUnavailable as error:  # the cluster is away: this is reported, and it is tried again
            raise _Unfit(str(error)) from error
        if (reason := self._cluster.unfit(member.resources, member.labels)) is not None:
            raise _Unfit(reason)
        if member.stage == "looked_for":
            return  # the next incarnation has its actor there
        name = f"{member.worker}#{member.incarnation}"
        welcome = Welcome(name, self._path, self._argv, own_main(), began_in(), self._environment, self._lease)
        actor = self._cluster.start(name, msgspec.msgpack.encode(welcome), member.resources, member.labels)
        if member.stage in _DONE_FOR:  # else nothing would end it
            actor.kill()
        else:
            member.actor = actor

    def _made(self, member: ActorMember, error: Exception | None) -> None:
        if isinstance(error, _Unfit) and not member.closing:
            if member.stage == "none":
                member.stage = "looked_for"
                self._post(self._engine.worker_unfit, member, str(error))
                self._lose_jobs(member, str(error))
            member.due = time.monotonic() + _LOOK
        elif is_shortage(error) and not member.closing and not member.dead:
            member.due = time.monotonic() + _LOOK  # the worker is not ready meanwhile
        elif error is not None:
            self._lose(member, str(error))
        elif member.stage == "looked_for" and not member.dead:
            self._post(self._engine.worker_fits, member)
            self._end_member(member, "another one takes its place")
        elif member.actor is None or member.dead:
            self._kill(member)
        else:
            member.stage = "placed"
            self._poll(member)
            self._go_on(member)
            self._ask(member)

    def _kill(self, member: ActorMember) -> None:
        """Kill the member's actor. Ray reports its end later."""
        if member.stage in _DONE_FOR:
            return
        member.asked = True
        actor = member.actor
        if actor is None:
            self._over(member)
            return
        member.stage, member.due = "killed", time.monotonic() + _KILLING
        self._calls.do(actor.kill, lambda _value, _error: None)

    def _over(self, member: ActorMember) -> None:
        member.stage, member.due, member.actor = "over", None, None
        self._members.discard(member)
        self._full.pop(member, None)
        self._post(self._engine.member_over, member)
        self._disconnect_at_last()

    def _retire(self, member: ActorMember, deadline: float) -> None:
        member.closing = True
        if member.jobs or member.waiting:
            member.due = member.deadline = time.monotonic() + deadline
        else:
            self._kill(member)

    def _end_member(self, member: ActorMember, reason: str) -> None:
        """End the member: its actor is killed, its running and waiting jobs are lost."""
        member.dead = True
        self._kill(member)
        self._lose_jobs(member, reason)

    def _lose_jobs(self, member: ActorMember, reason: str) -> None:
        jobs = [*member.jobs.values(), *member.waiting]
        member.jobs.clear()
        member.waiting.clear()
        for job in jobs:
            self._tell(job, job.cancelled("its actor was ended") if job.halted else job.lost(reason))

    def _lose(self, member: ActorMember, reason: str) -> None:
        """Give up the member's actor, which failed without a request."""
        if not member.dead:
            if not member.asked and not member.spoiled:
                self._post(self._engine.worker_died, member, reason)
            self._end_member(member, reason)

    def _gone(self, member: ActorMember, reason: str) -> None:
        """Handle the end of its actor, reported by Ray."""
        if member.stage == "over":
            return
        place = f" ({member.place})" if member.place else ""
        member.actor = None
        self._lose(member, f"its Ray actor{place} has ended: {reason}")
        self._over(member)

    def _act_on_due_time(self, member: ActorMember) -> None:
        member.due = None
        if member.stage == "killed":
            stuck = list(member.jobs.values())
            member.jobs.clear()
            for job in stuck:
                job.close()
                self._post(self._engine.job_stuck, job)
            member.dead = True
            self._over(member)
        elif member.deadline is not None and member.deadline <= time.monotonic():
            self._end_member(member, NOT_IN_TIME)
        elif member.stage in {"none", "looked_for"}:
            self._open(member)
        else:  # a call could not be delivered
            member.due = member.deadline
            self._poll(member)

    # -- calls in the actors -------------------------------------------------------------------------------------------

    def _begin(self, member: ActorMember, job: RayJob) -> None:
        if job.halted:
            self._tell(job, job.cancelled(NEVER_BEGUN))
        elif member.dead or member.closing or member.stage in {"looked_for", "killed", "over"}:
            self._tell(job, job.lost(GONE))
        else:
            member.waiting.append(job)
            self._go_on(member)

    def _go_on(self, member: ActorMember) -> None:
        if member.actor is not None and member.stage in {"placed", "up"}:
            while member.waiting:
                job = member.waiting.popleft()
                member.jobs[job.token] = job
                self._send(member, job.data)

    def _send(self, member: ActorMember, data: bytes) -> None:
        member.unsent += data
        self._full[member] = None

    def _push(self, member: ActorMember) -> None:
        if member.actor is not None and member.unsent and member.stage not in _DONE_FOR:
            member.pushed += 1
            self._push_batch(member, member.pushed, bytes(member.unsent))
            member.unsent.clear()

    def _push_batch(self, member: ActorMember, number: int, data: bytes) -> None:
        actor = member.actor
        if actor is not None:
            actor.push(
                number, data, lambda _, trouble: self._order(self._pushed, member, number, data, trouble)
            )  # fmt: skip

    def _pushed(self, member: ActorMember, number: int, data: bytes, trouble: RayTrouble | None) -> None:
        if trouble is None:
            pass
        elif trouble.kind == "away":
            self._push_batch(member, number, data)  # Ray has already waited for it
        elif trouble.kind == "gone":
            self._gone(member, str(trouble))
        else:
            self._lose(member, f"its actor refused a message: {trouble}")

    def _halt(self, member: ActorMember, job: RayJob, *, force: bool) -> None:
        if job in member.waiting:
            member.waiting.remove(job)
            self._tell(job, job.cancelled(NEVER_BEGUN))
        elif member.jobs.get(job.token) is job and not job.forced and (force or not job.halted):
            job.halted = True
            job.forced |= force
            self._send(member, packed(Stop(job.token, force)))
            if member.stage == "up":
                self._limit(job)

    def _limit(self, job: RayJob) -> None:
        """Set the time until which its end is awaited."""
        limit = _FORCED if job.forced else job.order.grace
        if job.order.line is not None or not job.order.on_loop:
            limit += _UNKILLABLE
        job.due = time.monotonic() + limit

    def _end_by_force(self, member: ActorMember, job: RayJob) -> None:
        """End a stopped job that did not end in time."""
        job.due = None
        if not job.forced and job.order.on_loop:
            self._halt(member, job, force=True)
        else:
            self._give_up(member, job)

    def _give_up(self, member: ActorMember, job: RayJob) -> None:
        """Give up a job that cannot be ended in its actor."""
        if not member.spoiled and not member.closing:
            self._post(self._engine.member_spoiled, member)
        member.spoiled = True
        if len(member.jobs) > 1:
            del member.jobs[job.token]
            job.close()
            self._post(self._engine.job_stuck, job)
        else:
            self._kill(member)

    def _answer(self, member: ActorMember, job: RayJob, answered: RequestAnswer) -> None:
        if member.jobs.get(job.token) is job:
            self._send(member, packed(answered))

    def _tell(self, job: RayJob, outcome: Outcome) -> None:
        job.close()
        self._post(self._engine.job_done, job, outcome)

    # -- messages of the actors ----------------------------------------------------------------------------------------

    def _probe(self, member: ActorMember) -> None:
        member.wanted = True
        if member.probed and member.stage == "up" and not member.looking:
            self._look(member)
        self._ask(member)

    def _look(self, member: ActorMember) -> None:
        """Queue an actor that has not answered the last probe, so that it is observed."""
        member.looking = True
        self._unseen.setdefault(member.node, []).append(member)

    def _look_at_nodes(self) -> None:
        """Have the queued actors observed: one observer for each node."""
        nodes = [] if self._closing else [node for node in self._unseen if node not in self._looked_at]
        for node in nodes[: _NODES - len(self._looked_at)]:
            members = self._unseen.pop(node)
            self._looked_at.add(node)
            self._cluster.look(
                node, [(member.pid, member.folder) for member in members], partial(self._told_of, node, members)
            )

    def _told_of(self, node: str, members: list[ActorMember], works: list[bool] | None, _: RayTrouble | None) -> None:
        self._orders.put(partial(self._looked, node, members, works or [False] * len(members)))

    def _looked(self, node: str, members: list[ActorMember], works: list[bool]) -> None:
        self._looked_at.discard(node)
        for member, one in zip(members, works, strict=False):
            self._guarded(self._seen, member, one)
        self._disconnect_at_last()

    def _seen(self, member: ActorMember, works: bool) -> None:
        member.looking = False
        if works and member.probed and member.stage == "up":
            self._post(self._engine.worker_alive, member, tuple(member.jobs), True)

    def _ask(self, member: ActorMember) -> None:
        actor = member.actor
        if member.wanted and not member.probed and actor is not None and member.stage in {"placed", "up"}:
            member.wanted, member.probed = False, True
            actor.probe(lambda tokens, trouble: self._order(self._probed, member, tokens, trouble))

    def _probed(self, member: ActorMember, tokens: tuple[int, ...], trouble: RayTrouble | None) -> None:
        member.probed = False
        if trouble is None:
            self._post(self._engine.worker_alive, member, tuple(tokens))
        elif trouble.kind == "gone":
            self._gone(member, str(trouble))

    def _poll(self, member: ActorMember) -> None:
        actor = member.actor
        if actor is not None and member.stage != "over":  # the end of a killed actor is reported by Ray
            patience = self._lease / 4
            actor.poll(member.polled, patience, lambda data, trouble: self._order(self._polled, member, data, trouble))

    def _polled(self, member: ActorMember, data: bytes | None, trouble: RayTrouble | None) -> None:
        if trouble is None:
            if data:
                member.polled += 1
            self._poll(member)  # before decoding: meanwhile the next batch arrives
            for body in Unpacker().feed(data or b""):
                self._heard(member, self._decode(body))
        elif trouble.kind == "away":
            member.due = min(member.due or float("inf"), time.monotonic() + _AGAIN)
        elif trouble.kind == "gone":
            self._gone(member, str(trouble))
        else:
            self._lose(member, f"its actor could not send its messages: {trouble}")

    def _heard(self, member: ActorMember, frame: FromActor) -> None:
        if isinstance(frame, ActorReady):
            member.place, member.pid = f"process {frame.pid} on {frame.host}", frame.pid
            member.node, member.folder = frame.node, frame.folder
            if member.stage == "placed":
                member.stage = "up"
            for halted in [one for one in member.jobs.values() if one.halted]:
                self._limit(halted)
            return
        job = member.jobs.get(frame.outcome.token if isinstance(frame, CallEnd) else frame.token)
        if job is None:
            return  # the job was given up, or is over
        match frame:
            case Heartbeat(details=details, saved=saved):
                if job.heartbeats.take(Checkpoint(details) if saved else details):
                    self._post(self._engine.job_said, job)
            case ShownFrame(shown=shown):
                if job.heartbeats.take(shown):
                    self._post(self._engine.job_said, job)
            case OutputPart(data=data, last=last):
                job.last = job.last if last is None else last
                job.keep(data)
            case BodyRequest() | RequestWithdrawn():
                self._post(self._engine.job_wants, job, frame)
            case CallEnd(outcome=outcome):
                self._ended(member, job, outcome)

    def _ended(self, member: ActorMember, job: RayJob, outcome: Outcome) -> None:
        if outcome.status == "abandoned":
            if member.stage not in _DONE_FOR:
                self._give_up(member, job)
            if member.jobs.get(job.token) is job:
                return  # the call ends with its actor
        else:
            del member.jobs[job.token]
            if outcome.output_path is not None:
                job.keep(b"")  # also if nothing was printed
            self._tell(job, msgspec.structs.replace(outcome, output_path=job.kept))
        if (member.spoiled or member.closing) and not member.jobs and not member.waiting:
            self._kill(member)


class _Unfit(Exception):  # noqa: N818 - it is passed on, not raised to a caller
    """No node could ever hold the actor."""
