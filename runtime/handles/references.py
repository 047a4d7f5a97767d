"""References, by which events are sent to jobs, workstreams, tasks, workers and breakers.

Rules
-----
- An entity accepts the events that people may fire (`machines/adapt/people.py`), in the words of its machine, and
  refuses every other event with the reason. An event calls a verb of the handle, with the verb's checks, answer, errors
  and key. So `ask(Fire("approve", by="ana", request_id="r"))` is `approve(by="ana", request_id="r")`.
- An event is judged by the present state. If the state does not know the event, it is refused, even where the verb
  would do something else (`resume()` of an ended job starts a next run). But an event that took effect under its key
  gets the same answer again.
- An event for an entity on another node goes there through the inbox, and has the answer or the error of that node.
- Events that `tell` sends by one reference are delivered in order, and their number is limited as for a machine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import anyio
import msgspec

from ...actors.messages.commands import Fire
from ...actors.spec.digits import whole
from ...actors.spec.lifecycles import UnknownLifecycle
from ...actors.times import limit_of
from ...actors.user_code import is_a, shown
from ...actors.users.dead_letters import Reason
from ...actors.users.errors import AskTimeout
from ...actors.users.ref import ASK_TIMEOUT
from ...machines import InvalidTransitionError
from ...machines.adapt.people import PEOPLE, Asks, EventTarget, part_of
from ...machines.keywords import called_as, did_you_mean
from ..commands.author import name_of, reason_of
from ..commands.idempotency import check_request_id
from ..commands.verbs import begins_run
from ..errors import RuntimeClosed
from .jobs import core_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from ...actors.records.base import Record
    from ...actors.records.entities import WorkstreamRecord
    from ...machines.adapt.lifecycle import Lifecycle
    from ..dispatch.dispatcher import Dispatcher
    from .jobs import JobHandle
    from .services import Services

WAITING = 10_000
"""The most events of `tell` that may wait at one reference."""


FireElsewhere: TypeAlias = Callable[[Fire], Awaitable[None]]


class Owner(msgspec.Struct, frozen=True):
    """The functions of the runtime that references use.

    start: runs a coroutine function among the runtime's own tasks. refuses: counts a refusal.
    """

    services: Services
    dispatcher: Dispatcher
    start: Callable[[Callable[[], Any]], object]
    refuses: Callable[[InvalidTransitionError, Container[str]], object]


@called_as("ref")
class EventRef(ABC):
    """The shared base of references to entities of this runtime and of another process, which differ in the sending."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.kind} {self.name}>"

    @abstractmethod
    async def _fire(self, message: Fire) -> Any:
        """Fire an event, and return the result of its verb."""

    async def ask(self, message: Fire, *, timeout: float | None = ASK_TIMEOUT) -> Any:
        """Fire an event. Returns the result of its verb, when the effect is durable.

        timeout: in seconds; None waits as long as the runtime is open. An event with the same `request_id` takes effect
        once. `facts`: further arguments of the verb, by name (a task's `approval`, a worker's `deadline`, a breaker's
        `cooldown`). Raises InvalidTransitionError for an event that people may not fire, or not in this state; the
        errors of the verb; AskTimeout (the event may still take effect); TypeError and ValueError for invalid
        arguments.
        """
        check_fire(message, f"a {self.kind}")
        timeout = limit_of(timeout, "the timeout of an ask")
        with anyio.move_on_after(timeout):
            return await self._fire(message)
        raise AskTimeout(f"asked {self.kind} {self.name} {message!r}: no answer within {timeout} s; it may still come")

    async def fire(
        self,
        event: str,
        *,
        reason: str | None = None,
        by: str | None = None,
        facts: dict[str, Any] | None = None,
        request_id: str | None = None,
    ) -> Any:
        """The same as `ask(Fire(...))`, without a timeout."""
        return await self.ask(Fire(event, reason, None, facts, request_id, by), timeout=None)

    def _refuse_metadata(self, message: Fire) -> None:
        """Raises ValueError for metadata, which no verb keeps."""
        if message.metadata:
            raise ValueError(f"a {self.kind} keeps no metadata with an event: say it in the reason")


class EntityRef(EventRef):
    """A reference to a job, workstream, task, worker or breaker of a runtime, for sending events."""

    def __init__(self, owner: Owner, kind: str, name: str, handle: Any, job: JobHandle | None) -> None:
        """handle: its verbs execute the events. job: the job that the entity belongs to, if any."""
        super().__init__(kind, name)
        self._owner = owner
        self._services = owner.services
        self._handle = handle
        self._job = job
        self._core = None if job is None else core_of(job)
        self._mail: deque[Fire] = deque()  # events of `tell` that are not sent yet
        self._waiting = 0  # events of `tell` that have no answer yet
        self._sending = False

    @property
    def record(self) -> Record:
        """The entity's present record. Raises LookupError if there is no record yet."""
        if self.kind != "workstream":
            record: Record = self._handle.record
            return record
        stream = self._stream
        if stream is None:
            raise LookupError(f"workstream {self.name!r} is not known here")
        return stream

    @property
    def state(self) -> str:
        """The entity's present state, in the words of its lifecycle."""
        return self.record.shown

    @property
    def ended(self) -> bool:
        """Whether the entity has ended."""
        return getattr(self.record, "finished_at", None) is not None

    @property
    def facts(self) -> None:
        """None: the data of the entity is in its record."""

    @property
    def events(self) -> frozenset[str]:
        """The events that people may fire in the present state. The entity's checks may still refuse them."""
        return frozenset(event for part in self._parts(self._stream) for event in part.possible)

    def tell(self, message: Fire) -> bool:
        """Fire an event without waiting. A refused event becomes a dead letter, and is counted.

        Returns False if the event is not accepted, since the runtime has closed or `WAITING` events wait here already.
        The event is a dead letter then.
        """
        check_fire(message, f"a {self.kind}")
        self._services.check_here(f"a {self.kind}")
        dispatcher = self._owner.dispatcher
        if not self._services.is_open or self._waiting >= WAITING:
            reason = Reason.MAILBOX_FULL if self._services.is_open else Reason.STOPPED
            dispatcher.dead_letters.add(self.name, message, reason)
            return False
        self._waiting += 1
        dispatcher.effects.stage(self._put, message)  # a `receive` that raises sends nothing
        dispatcher.effects.on_undo(self._leave)
        return True

    def _put(self, message: Fire) -> None:
        self._mail.append(message)
        if not self._sending:
            self._sending = True
            self._owner.start(self._send)

    def _leave(self) -> None:
        self._waiting -= 1

    async def _send(self) -> None:
        """Send the events of `tell`, one after another."""
        letters, mail = self._owner.dispatcher.dead_letters, self._mail
        try:
            while mail:
                try:
                    await self._fire(mail[0])
                except RuntimeClosed:
                    break
                except Exception as error:  # no caller waits who could catch it
                    letters.add(self.name, mail[0], Reason.REFUSED, error)
                mail.popleft()
                self._leave()
        finally:
            self._sending = False
            for message in mail:
                letters.add(self.name, message, Reason.STOPPED)
                self._leave()
            mail.clear()

    # -- the accepted events -------------------------------------------------------------------------------------------

    async def _looked(self, event: str) -> tuple[list[EventTarget], Asks | None]:
        """The parts of the entity that take events, and the verb that the event calls."""
        try:
            stream = self._stream
            if stream is None and self.kind in _OF_JOBS:
                stream = await self._last_run()
            parts = self._parts(stream)
        except UnknownLifecycle:
            if self._away is None:
                raise
            return [], None  # the node that runs the entity knows its lifecycle
        try:
            return parts, asked(parts, event, self._id)
        except InvalidTransitionError as refusal:
            self._count(parts, refusal)
            raise

    async def _fire(self, message: Fire) -> Any:
        self._refuse_metadata(message)
        event = str(message.event)  # the event may be a member of an enumeration
        parts, asks = await self._looked(event)
        if (away := self._away) is not None:
            await away(message)
            return self._job if asks is not None and begins_run(self.kind, asks.verb) else None
        assert asks is not None  # noqa: S101 - what runs here, runs by what is known here
        given = self._given(asks, message)
        if not (asks.decides or any(part.knows(event) for part in parts) or await self._was_given(message.request_id)):
            refusal = refused(parts, event, self._id)
            self._count(parts, refusal)
            raise refusal
        return await getattr(self._handle, asks.verb)(**given)

    def _count(self, parts: Sequence[EventTarget], refusal: InvalidTransitionError) -> None:
        """Count a refusal of the reference itself; the verbs count their own."""
        self._owner.refuses(refusal, {str(row.event) for part in parts for row in part.machine.transitions})

    @property
    def _id(self) -> str:
        """The entity's id in refusals; for a task the id in its transitions."""
        return str(self._handle.record.id) if self.kind == "task" else self.name

    @property
    def _stream(self) -> WorkstreamRecord | None:
        """The workstream to which a job passes events, if it is in memory."""
        return None if self._core is None or self.kind not in _OF_JOBS else self._core.stream

    @property
    def _away(self) -> FireElsewhere | None:
        """Sends an event to the node that runs the entity; None if this node does."""
        return None if self._core is None else self._core.away(self._handle.name if self.kind == "task" else None)

    async def _last_run(self) -> WorkstreamRecord | None:
        """The workstream from the journal, for a job that has ended or is on another node."""
        job = self._handle
        runs: list[WorkstreamRecord] = await self._services.read(self._services.journal.reader.workstreams, job.id)
        return next((one for one in runs if one.run == job.record.run), None)

    def _parts(self, stream: WorkstreamRecord | None) -> list[EventTarget]:
        """The entity, and the workstream to which it passes events."""
        about: list[tuple[str, Record | None]] = [("workstream", stream)] if self.kind in _OF_JOBS else []
        if self.kind != "workstream":
            about.insert(0, (self.kind, self._handle.record))
        return parts_of(about, self._services.lifecycles.get)

    def _given(self, asks: Asks, message: Fire) -> dict[str, Any]:
        """The arguments of the verb. Raises ValueError for arguments that the verb does not have."""
        facts = message.facts or {}
        if unknown := facts.keys() - set(asks.takes):
            takes = ", ".join(asks.takes) or "none"
            none = ", ".join(map(repr, sorted(unknown)))
            raise ValueError(f"{message.event!r} at a {self.kind} takes no fact {none}; it takes: {takes}")
        said = {"reason": message.reason, "by": message.by, "request_id": message.request_id, **facts}
        if asks.force:
            said["force"] = True
        if asks.decides and message.by is None:
            raise TypeError(
                f"{message.event!r} at a {self.kind} is a person's decision: name the person, Fire(..., by=NAME)"
            )
        return {name: value for name, value in said.items() if value is not None}

    async def _was_given(self, request_id: str | None) -> bool:
        """Whether a command with that key is in flight or has taken effect: its verb then has the answer."""
        if request_id is None:
            return False
        key = check_request_id(request_id)
        return self._services.in_flight(key) or await self._services.kept_of(key) is not None


async def verb_for_event(ref: EntityRef, event: str) -> str | None:
    """The verb that an event calls, for the board; None if only another node knows the entity's lifecycle.

    Raises InvalidTransitionError for an event that people may not fire.
    """
    _, asks = await ref._looked(event)  # pyright: ignore[reportPrivateUsage]
    return None if asks is None else asks.verb


# -- what events ask for, and why not ----------------------------------------------------------------------------------


def parts_of(
    about: Iterable[tuple[str, Record | None]], lifecycle_of: Callable[[str, str], Lifecycle]
) -> list[EventTarget]:
    """The parts of an entity that take events. Raises the errors of `lifecycle_of`, which gets a name and a kind."""
    return [
        part_of(
            kind,
            None if record is None else str(record.shown),
            None if record is None or record.published is None else lifecycle_of(record.published.lifecycle, kind),
        )
        for kind, record in about
    ]


def asked(parts: Sequence[EventTarget], event: str, name: str) -> Asks:
    """The verb that an event calls. Raises InvalidTransitionError if people may not fire the event in any state."""
    asking = [part for part in parts if event in part.asks]
    if asking:
        return next((part for part in asking if part.knows(event)), asking[0]).asks[event]
    theirs = [str(word) for part in parts for word in part.asks]
    ours = any(str(row.event) == event for part in parts for row in part.machine.transitions)
    machines = list(dict.fromkeys(part.machine.name for part in parts))
    by = " and ".join(machines)
    if ours:
        why = f"The runtime fires {event!r} itself, as the work goes."
    elif verb := next((asks.verb for part in parts for own, asks in PEOPLE[part.kind].items() if own == event), ""):
        why = f"It runs by {by}, without such an event: use the verb {verb}()."
    elif event == "retry":
        why = "No event begins the next run: use the verb retry()."
    else:
        why = f"{by} {'have' if len(machines) > 1 else 'has'} no event of that name."
    near = "" if ours else did_you_mean(event, theirs)
    more = f"; {near}" if near else "."
    possible = {word for part in parts for word in part.possible}
    if theirs and possible == set(theirs):  # the error names them as what is possible now
        raise _error(parts, parts[0], event, name, f"{why[:-1]}; {near}" if near else why)
    named = ", ".join(dict.fromkeys(theirs)) or "none"
    raise _error(parts, parts[0], event, name, f"{why} Events that people may fire at it: {named}{more}")


def refused(parts: Sequence[EventTarget], event: str, name: str) -> InvalidTransitionError:
    """The error for an event that people may fire, but not in the present state."""
    part = next(part for part in parts if event in part.asks)
    advice = ""
    if part.state is None:
        advice = "It has not begun."
    elif not part.machine.is_terminal(part.state) and not any(one.knows(word) for one in parts for word in one.asks):
        knowing = [str(state) for state, events in part.machine.table.items() if event in events]
        advice = f"People may fire it in: {', '.join(knowing)}. Now its work goes on by itself."
    return _error(parts, part, event, name, advice)


def _error(
    parts: Sequence[EventTarget], part: EventTarget, event: str, name: str, advice: str
) -> InvalidTransitionError:
    possible = frozenset(word for one in parts for word in one.possible)
    state = "not begun" if part.state is None else part.state
    error = InvalidTransitionError(part.machine.name, state, event, possible, advice)
    error.subject = name
    return error


# -- by their names ----------------------------------------------------------------------------------------------------


class NameMeaning(msgspec.Struct, frozen=True):
    """One meaning of a name: a job, a run of a job, or a task of a job."""

    job: str
    run: int | None = None
    task: str | None = None


def meanings_of(name: str) -> Iterator[NameMeaning]:
    """The meanings of a name: "JOB", "JOB@RUN" (a workstream), "JOB/TASK", "JOB@RUN/TASK". Child ids have slashes."""
    yield NameMeaning(name)
    job, run = _run_of(name)
    if run is not None:
        yield NameMeaning(job, run)
    head, slash, task = name.rpartition("/")
    if slash:
        yield NameMeaning(head, None, task)
        job, run = _run_of(head)
        if run is not None:
            yield NameMeaning(job, run, task)


def _run_of(name: str) -> tuple[str, int | None]:
    job, at, run = name.rpartition("@")
    return (job, whole(run)) if at else (name, None)


_OF_JOBS = ("job", "workstream")


def check_fire(message: object, whom: str) -> Fire:
    """Refuse an invalid event, or one that cannot be kept. Raises TypeError, ValueError."""
    if not is_a(message, Fire):
        raise TypeError(f"{whom} takes a Fire, not {shown(message, 60)}")
    fire = cast("Fire", message)
    if fire.reason is not None:
        reason_of(fire.reason)
    if fire.by is not None:
        name_of(fire.by)
    return fire
