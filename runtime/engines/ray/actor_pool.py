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
from ..workers.seat import GONE, NEVER_BEGUN, NOT_IN_TIME, TERMINATED
from ..workers.wire import BodyRequest, Heartbeat, RequestAnswer, RequestWithdrawn, Unpacker, packed
from .cluster import RayTrouble, RayUnavailable, ray_thread
from .connection import Connection
from .wire import ActorReady, CallEnd, FromActor, OutputPart, Stop, Welcome
from .worker_actor import RayJob, RaySeat

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
        self._seats: set[RaySeat] = set()  # seats whose actors have not ended
        self._full: dict[RaySeat, None] = {}  # seats with frames to send
        self._unseen: dict[str, list[RaySeat]] = {}  # seats to observe, by node
        self._looked_at: set[str] = set()  # nodes that are being observed
        self._closing = False
        self._closed = False
        self._decode = msgspec.msgpack.Decoder(FromActor).decode
        Thread(target=self._run, name="callboard-ray", daemon=True).start()

    def open_seat(self, seat: RaySeat) -> None:
        """Create an actor for the seat, with the resources that its worker requests."""
        if (spec := self._spec_of(seat.worker)) is not None:
            seat.resources, seat.labels = dict(spec.resources), dict(spec.labels)
        self._order(self._open, seat)

    def begin(self, job: RayJob) -> None:
        """Run the job in its seat."""
        self._order(self._begin, job.seat, job)

    def halt(self, job: RayJob, *, force: bool) -> None:
        """Make the job end: by asking it, within its grace, or (`force`) at once."""
        self._order(partial(self._halt, force=force), job.seat, job)

    def answer(self, job: RayJob, answered: RequestAnswer) -> None:
        """Send the job the answer to its question, if it still runs."""
        self._order(self._answer, job.seat, job, answered)

    def probe(self, seat: RaySeat) -> None:
        """Probe the seat's worker."""
        self._order(self._probe, seat)

    def stop(self, seat: RaySeat, deadline: float) -> None:
        """End the seat's actor after its running calls, at the latest in `deadline` seconds."""
        self._order(self._retire, seat, deadline)

    def kill(self, seat: RaySeat) -> None:
        """Kill the seat's actor; its jobs are lost."""
        self._order(self._end_seat, seat, TERMINATED)

    def park(self, job: RayJob) -> bool:  # noqa: ARG002 - the same for every job
        """Do nothing: an actor runs other calls while a body that lends its slot waits there."""
        return False

    def renew(self, seat: RaySeat) -> None:
        """Do nothing: an actor stays as long as its worker."""

    def close(self) -> None:
        """Kill the remaining actors, close the connection, and end."""
        self._orders.put(self._close)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _order(self, step: Callable[..., None], seat: RaySeat, *args: Any) -> None:
        self._orders.put(lambda: self._guarded(step, seat, *args))

    def _guarded(self, step: Callable[..., None], seat: RaySeat, *args: Any) -> None:
        try:
            step(seat, *args)
        except Exception as error:  # an error about one seat ends only that seat
            self._lose(seat, f"its actor could not be used: {type(error).__name__}: {error}")

    def _run(self) -> None:
        while not self._closed:
            try:
                self._orders.get(timeout=self._patience())()
                while True:  # take all orders that are there before sending
                    self._orders.get_nowait()()
            except Empty:
                pass
            full, self._full = self._full, {}
            for seat in full:
                self._guarded(self._push, seat)
            self._look_at_nodes()
            now = time.monotonic()
            for seat in list(self._seats):
                if seat.due is not None and seat.due <= now:
                    self._guarded(self._act_on_due_time, seat)
                for job in [job for job in seat.jobs.values() if job.due is not None and job.due <= now]:
                    self._guarded(self._end_by_force, seat, job)
        self._tell_closed()

    def _patience(self) -> float | None:
        dues = [seat.due for seat in self._seats if seat.due is not None]
        dues += [job.due for seat in self._seats for job in seat.jobs.values() if job.due is not None]
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _close(self) -> None:
        self._closing = True
        for seat in list(self._seats):
            seat.closing = True
            self._kill(seat)
        self._disconnect_at_last()

    def _disconnect_at_last(self) -> None:
        """Disconnect, once the connection is unused: an observation in progress would make Ray create another one."""
        if not self._closing or self._seats or self._looked_at:
            return
        self._calls.do(self._cluster.disconnect, lambda _value, _error: self._orders.put(self._finish))

    def _finish(self) -> None:
        self._closed = True

    # -- actors --------------------------------------------------------------------------------------------------------

    def _open(self, seat: RaySeat) -> None:
        if seat.dead or seat.stage in _DONE_FOR:
            return
        self._seats.add(seat)
        seat.due = None
        self._calls.do(partial(self._make, seat), lambda _, error: self._order(self._made, seat, error))

    def _make(self, seat: RaySeat) -> None:
        """In Ray's thread: find a node for the actor, and create it."""
        if seat.dead or self._closing:
            return
        try:
            self._cluster.connect()
        except RayUnavailable as error:  # the cluster is away: this is reported, and it is tried again
            raise _Unfit(str(error)) from error
        if (reason := self._cluster.unfit(seat.resources, seat.labels)) is not None:
            raise _Unfit(reason)
        if seat.stage == "looked_for":
            return  # the next incarnation has its actor there
        name = f"{seat.worker}#{seat.incarnation}"
        welcome = Welcome(name, self._path, self._argv, own_main(), began_in(), self._environment, self._lease)
        actor = self._cluster.start(name, msgspec.msgpack.encode(welcome), seat.resources, seat.labels)
        if seat.stage in _DONE_FOR:  # else nothing would end it
            actor.kill()
        else:
            seat.actor = actor

    def _made(self, seat: RaySeat, error: Exception | None) -> None:
        if isinstance(error, _Unfit) and not seat.closing:
            if seat.stage == "none":
                seat.stage = "looked_for"
                self._post(self._engine.worker_unfit, seat, str(error))
                self._lose_jobs(seat, str(error))
            seat.due = time.monotonic() + _LOOK
        elif is_shortage(error) and not seat.closing and not seat.dead:
            seat.due = time.monotonic() + _LOOK  # its worker is not ready meanwhile
        elif error is not None:
            self._lose(seat, str(error))
        elif seat.stage == "looked_for" and not seat.dead:
            self._post(self._engine.worker_fits, seat)
            self._end_seat(seat, "another one takes its place")
        elif seat.actor is None or seat.dead:
            self._kill(seat)
        else:
            seat.stage = "placed"
            self._poll(seat)
            self._go_on(seat)
            self._ask(seat)

    def _kill(self, seat: RaySeat) -> None:
        """Kill the seat's actor. Ray reports its end later."""
        if seat.stage in _DONE_FOR:
            return
        seat.asked = True
        actor = seat.actor
        if actor is None:
            self._over(seat)
            return
        seat.stage, seat.due = "killed", time.monotonic() + _KILLING
        self._calls.do(actor.kill, lambda _value, _error: None)

    def _over(self, seat: RaySeat) -> None:
        seat.stage, seat.due, seat.actor = "over", None, None
        self._seats.discard(seat)
        self._full.pop(seat, None)
        self._post(self._engine.seat_over, seat)
        self._disconnect_at_last()

    def _retire(self, seat: RaySeat, deadline: float) -> None:
        seat.closing = True
        if seat.jobs or seat.waiting:
            seat.due = seat.deadline = time.monotonic() + deadline
        else:
            self._kill(seat)

    def _end_seat(self, seat: RaySeat, reason: str) -> None:
        """End the seat: its actor is killed, its running and waiting jobs are lost."""
        seat.dead = True
        self._kill(seat)
        self._lose_jobs(seat, reason)

    def _lose_jobs(self, seat: RaySeat, reason: str) -> None:
        jobs = [*seat.jobs.values(), *seat.waiting]
        seat.jobs.clear()
        seat.waiting.clear()
        for job in jobs:
            self._tell(job, job.cancelled("its actor was ended") if job.halted else job.lost(reason))

    def _lose(self, seat: RaySeat, reason: str) -> None:
        """Give up the seat's actor, which failed without a request."""
        if not seat.dead:
            if not seat.asked and not seat.spoiled:
                self._post(self._engine.worker_died, seat, reason)
            self._end_seat(seat, reason)

    def _gone(self, seat: RaySeat, reason: str) -> None:
        """Handle the end of its actor, reported by Ray."""
        if seat.stage == "over":
            return
        place = f" ({seat.place})" if seat.place else ""
        seat.actor = None
        self._lose(seat, f"its Ray actor{place} has ended: {reason}")
        self._over(seat)

    def _act_on_due_time(self, seat: RaySeat) -> None:
        seat.due = None
        if seat.stage == "killed":
            stuck = list(seat.jobs.values())
            seat.jobs.clear()
            for job in stuck:
                job.close()
                self._post(self._engine.job_stuck, job)
            seat.dead = True
            self._over(seat)
        elif seat.deadline is not None and seat.deadline <= time.monotonic():
            self._end_seat(seat, NOT_IN_TIME)
        elif seat.stage in {"none", "looked_for"}:
            self._open(seat)
        else:  # a call could not be delivered
            seat.due = seat.deadline
            self._poll(seat)

    # -- calls in the actors -------------------------------------------------------------------------------------------

    def _begin(self, seat: RaySeat, job: RayJob) -> None:
        if job.halted:
            self._tell(job, job.cancelled(NEVER_BEGUN))
        elif seat.dead or seat.closing or seat.stage in {"looked_for", "killed", "over"}:
            self._tell(job, job.lost(GONE))
        else:
            seat.waiting.append(job)
            self._go_on(seat)

    def _go_on(self, seat: RaySeat) -> None:
        if seat.actor is not None and seat.stage in {"placed", "up"}:
            while seat.waiting:
                job = seat.waiting.popleft()
                seat.jobs[job.token] = job
                self._send(seat, job.data)

    def _send(self, seat: RaySeat, data: bytes) -> None:
        seat.unsent += data
        self._full[seat] = None

    def _push(self, seat: RaySeat) -> None:
        if seat.actor is not None and seat.unsent and seat.stage not in _DONE_FOR:
            seat.pushed += 1
            self._push_batch(seat, seat.pushed, bytes(seat.unsent))
            seat.unsent.clear()

    def _push_batch(self, seat: RaySeat, number: int, data: bytes) -> None:
        actor = seat.actor
        if actor is not None:
            actor.push(
                number, data, lambda _, trouble: self._order(self._pushed, seat, number, data, trouble)
            )  # fmt: skip

    def _pushed(self, seat: RaySeat, number: int, data: bytes, trouble: RayTrouble | None) -> None:
        if trouble is None:
            pass
        elif trouble.kind == "away":
            self._push_batch(seat, number, data)  # Ray has already waited for it
        elif trouble.kind == "gone":
            self._gone(seat, str(trouble))
        else:
            self._lose(seat, f"its actor refused a message: {trouble}")

    def _halt(self, seat: RaySeat, job: RayJob, *, force: bool) -> None:
        if job in seat.waiting:
            seat.waiting.remove(job)
            self._tell(job, job.cancelled(NEVER_BEGUN))
        elif seat.jobs.get(job.token) is job and not job.forced and (force or not job.halted):
            job.halted = True
            job.forced |= force
            self._send(seat, packed(Stop(job.token, force)))
            if seat.stage == "up":
                self._limit(job)

    def _limit(self, job: RayJob) -> None:
        """Set the time until which its end is awaited."""
        limit = _FORCED if job.forced else job.order.grace
        if job.order.line is not None or not job.order.on_loop:
            limit += _UNKILLABLE
        job.due = time.monotonic() + limit

    def _end_by_force(self, seat: RaySeat, job: RayJob) -> None:
        """End a stopped job that did not end in time."""
        job.due = None
        if not job.forced and job.order.on_loop:
            self._halt(seat, job, force=True)
        else:
            self._give_up(seat, job)

    def _give_up(self, seat: RaySeat, job: RayJob) -> None:
        """Give up a job that cannot be ended in its actor."""
        if not seat.spoiled and not seat.closing:
            self._post(self._engine.seat_spoiled, seat)
        seat.spoiled = True
        if len(seat.jobs) > 1:
            del seat.jobs[job.token]
            job.close()
            self._post(self._engine.job_stuck, job)
        else:
            self._kill(seat)

    def _answer(self, seat: RaySeat, job: RayJob, answered: RequestAnswer) -> None:
        if seat.jobs.get(job.token) is job:
            self._send(seat, packed(answered))

    def _tell(self, job: RayJob, outcome: Outcome) -> None:
        job.close()
        self._post(self._engine.job_done, job, outcome)

    # -- messages of the actors ----------------------------------------------------------------------------------------

    def _probe(self, seat: RaySeat) -> None:
        seat.wanted = True
        if seat.probed and seat.stage == "up" and not seat.looking:
            self._look(seat)
        self._ask(seat)

    def _look(self, seat: RaySeat) -> None:
        """Queue an actor that has not answered the last probe, so that it is observed."""
        seat.looking = True
        self._unseen.setdefault(seat.node, []).append(seat)

    def _look_at_nodes(self) -> None:
        """Have the queued actors observed: one observer for each node."""
        nodes = [] if self._closing else [node for node in self._unseen if node not in self._looked_at]
        for node in nodes[: _NODES - len(self._looked_at)]:
            seats = self._unseen.pop(node)
            self._looked_at.add(node)
            self._cluster.look(node, [(seat.pid, seat.folder) for seat in seats], partial(self._told_of, node, seats))

    def _told_of(self, node: str, seats: list[RaySeat], works: list[bool] | None, _: RayTrouble | None) -> None:
        self._orders.put(partial(self._looked, node, seats, works or [False] * len(seats)))

    def _looked(self, node: str, seats: list[RaySeat], works: list[bool]) -> None:
        self._looked_at.discard(node)
        for seat, one in zip(seats, works, strict=False):
            self._guarded(self._seen, seat, one)
        self._disconnect_at_last()

    def _seen(self, seat: RaySeat, works: bool) -> None:
        seat.looking = False
        if works and seat.probed and seat.stage == "up":
            self._post(self._engine.worker_alive, seat, tuple(seat.jobs), True)

    def _ask(self, seat: RaySeat) -> None:
        actor = seat.actor
        if seat.wanted and not seat.probed and actor is not None and seat.stage in {"placed", "up"}:
            seat.wanted, seat.probed = False, True
            actor.probe(lambda tokens, trouble: self._order(self._probed, seat, tokens, trouble))

    def _probed(self, seat: RaySeat, tokens: tuple[int, ...], trouble: RayTrouble | None) -> None:
        seat.probed = False
        if trouble is None:
            self._post(self._engine.worker_alive, seat, tuple(tokens))
        elif trouble.kind == "gone":
            self._gone(seat, str(trouble))

    def _poll(self, seat: RaySeat) -> None:
        actor = seat.actor
        if actor is not None and seat.stage != "over":  # the end of a killed actor is reported by Ray
            patience = self._lease / 4
            actor.poll(seat.polled, patience, lambda data, trouble: self._order(self._polled, seat, data, trouble))

    def _polled(self, seat: RaySeat, data: bytes | None, trouble: RayTrouble | None) -> None:
        if trouble is None:
            if data:
                seat.polled += 1
            self._poll(seat)  # before decoding: meanwhile the next batch arrives
            for body in Unpacker().feed(data or b""):
                self._heard(seat, self._decode(body))
        elif trouble.kind == "away":
            seat.due = min(seat.due or float("inf"), time.monotonic() + _AGAIN)
        elif trouble.kind == "gone":
            self._gone(seat, str(trouble))
        else:
            self._lose(seat, f"its actor could not send its messages: {trouble}")

    def _heard(self, seat: RaySeat, frame: FromActor) -> None:
        if isinstance(frame, ActorReady):
            seat.place, seat.pid = f"process {frame.pid} on {frame.host}", frame.pid
            seat.node, seat.folder = frame.node, frame.folder
            if seat.stage == "placed":
                seat.stage = "up"
            for halted in [one for one in seat.jobs.values() if one.halted]:
                self._limit(halted)
            return
        job = seat.jobs.get(frame.outcome.token if isinstance(frame, CallEnd) else frame.token)
        if job is None:
            return  # the job was given up, or is over
        match frame:
            case Heartbeat(details=details, saved=saved):
                if job.heartbeats.take(Checkpoint(details) if saved else details):
                    self._post(self._engine.job_said, job)
            case OutputPart(data=data, last=last):
                job.last = job.last if last is None else last
                job.keep(data)
            case BodyRequest() | RequestWithdrawn():
                self._post(self._engine.job_wants, job, frame)
            case CallEnd(outcome=outcome):
                self._ended(seat, job, outcome)

    def _ended(self, seat: RaySeat, job: RayJob, outcome: Outcome) -> None:
        if outcome.status == "abandoned":
            if seat.stage not in _DONE_FOR:
                self._give_up(seat, job)
            if seat.jobs.get(job.token) is job:
                return  # the call ends with its actor
        else:
            del seat.jobs[job.token]
            if outcome.output_path is not None:
                job.keep(b"")  # also if nothing was printed
            self._tell(job, msgspec.structs.replace(outcome, output_path=job.kept))
        if (seat.spoiled or seat.closing) and not seat.jobs and not seat.waiting:
            self._kill(seat)


class _Unfit(Exception):  # noqa: N818 - it is passed on, not raised to a caller
    """No node could ever hold the actor."""
