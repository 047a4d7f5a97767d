"""Requests of a body in a worker process to its runtime, as questions over the socket: child jobs, approvals, steps.

Rules:
- A request has a number; the body waits for the answer to that number. Any other answer is dropped.
- Functions are written as import paths here, since the runtime, and a restart, must find them. The runtime checks and
  reports all other errors in a request.
- A body that is told to stop does not wait any longer; a body that stops waiting notifies the runtime, also if a
  signal's handler of the body raised as soon as the request was sent.
- Modules for submitting and outcomes are imported when they are first needed: a process must start fast.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from itertools import count
from typing import TYPE_CHECKING, Any, cast

import anyio
import msgspec

from ....actors.messages.errors import AttemptOver, TaskCancelled
from ....actors.records.entities import ApprovalRecord
from ....actors.spec.model import Approval, Workstream
from ....actors.user_code import is_a, plain_text, shown
from ...dispatch.despite_cancel import despite_cancel, is_cancellation
from ..child_job import ChildJob
from ..context import TaskContext, connection_of
from ..waiting import Waiter
from ..workers.wire import BodyRequest, Frame, RequestAnswer, RequestRefusal, RequestWithdrawn, What

if TYPE_CHECKING:
    from ...handles.outcomes import Outcome
    from ..connection import Connection
    from .flow_proxy import BodyLoop


_WAITS = frozenset({"wait", "approval", "pause", "message", "tool", "run", "stay"})
"""The requests during which the slot of the body may be lent."""


async def _not_given_up() -> None:
    return None


class RuntimeRequest(Waiter):
    """A request to the runtime, sent as `frame`. `answer` is None until it is answered."""

    __slots__ = ("answer", "frame", "number", "then")

    def __init__(
        self, frame: BodyRequest, *, thread: bool, then: Callable[[RuntimeRequest], None] | None = None
    ) -> None:
        super().__init__(frame.token, frame.name, threading.Event() if thread else anyio.Event())
        self.frame = frame
        self.then = then  # called on the event loop when it is answered
        self.number = frame.number
        self.answer: RequestAnswer | None = None

    def payload(self) -> bytes:
        """The answer's bytes. Raises the error of a refusal, and TaskCancelled if there was no answer."""
        if self.answer is None:
            raise TaskCancelled("the attempt was stopped while it waited for its runtime's answer")
        if self.answer.refusal is not None:
            raise _raised(self.answer.refusal)
        return self.answer.payload

    def result(self) -> Any:
        """The result of a waiter for an approval."""
        if self.answer is not None:
            self.record = msgspec.json.decode(self.payload(), type=ApprovalRecord)
        return super().result()


class RuntimeProxy:
    """The requests of one body to its runtime: for child jobs, and for approvals. `say` sends a frame, in the body's
    thread.

    loop: the event loop of the body, if it has one; else of its steps, once there is one.
    """

    def __init__(
        self,
        token: int,
        say: Callable[[Frame], None],
        loop: BodyLoop | None = None,
    ) -> None:
        self._token = token
        self._say = say
        self.loop = loop
        self.given_up = 0  # waits that the body has given up since it has asked for its slot
        self._numbers = count(1)
        self._asked: dict[int, RuntimeRequest] = {}

    def answered(self, answer: RequestAnswer) -> None:
        """Record an answer, in the thread that reads."""
        question = self._asked.get(answer.number) if answer.token == self._token else None
        if question is not None:
            question.answer = answer
            over = question.over
            if question.then is not None and self.loop is not None:
                self.loop.post(question.then, question)
            elif isinstance(over, threading.Event) or self.loop is None:
                over.set()
            else:
                self.loop.post(over.set)

    # -- approvals -----------------------------------------------------------------------------------------------------

    async def decision(self, token: int, name: str, rule: Approval, connection: Connection) -> Waiter:  # noqa: ARG002
        """Ask for an approval, and wait for the answer on the event loop."""
        question = self._ask(name, rule, thread=False)
        try:
            self._say(question.frame)
            await cast("anyio.Event", question.over).wait()
        finally:
            self._leave(question)
        return question

    def decision_blocking(self, token: int, name: str, rule: Approval, connection: Connection) -> Waiter:  # noqa: ARG002
        """Ask for an approval, and wait for the answer in this thread."""
        question = self._ask(name, rule, thread=True)
        try:
            self._say(question.frame)
            connection.wait_for(question)
        finally:
            self._leave(question)
        return question

    def _ask(self, name: str, rule: Approval, *, thread: bool) -> RuntimeRequest:
        """Ask for an approval. thread: for a plain function, which does nothing else meanwhile."""
        if not is_a(rule, Approval):
            raise TypeError(f"an approval's rule is an Approval, not {shown(rule, 60)}")
        from ...functions.registry import prepare_approval  # noqa: PLC0415 - see above
        from .paths import Paths  # noqa: PLC0415

        payload = msgspec.json.encode((prepare_approval(rule, Paths(), durable=True), thread))
        return self._request("approval", name, payload, thread=thread)

    def _leave(self, question: RuntimeRequest, given_up: str | None = None) -> None:
        """Stop waiting for the answer."""
        number = question.number
        if self._asked.pop(number).answer is None:
            if question.frame.what in _WAITS:
                self.given_up += 1
            self._say(RequestWithdrawn(self._token, number, given_up))

    # -- child jobs ----------------------------------------------------------------------------------------------------

    async def submit(self, context: TaskContext, workstream: Workstream, name: str) -> ChildJob:
        """`TaskContext.submit`."""
        self._check_loop()
        payload = _submission(workstream, "submit")
        return ChildJob(self, (await self.answer_on_loop("submit", name, payload)).decode(), context)

    def submit_blocking(self, context: TaskContext, workstream: Workstream, name: str) -> ChildJob:
        """`TaskContext.submit_blocking`."""
        payload = _submission(workstream, "submit_blocking")
        return ChildJob(self, self.answer_to(connection_of(context), "submit", name, payload).decode(), context)

    async def wait(self, context: TaskContext, child: ChildJob) -> Outcome:  # noqa: ARG002 - only blocking needs it
        """`ChildJob.wait`."""
        from ...handles.outcomes import Outcome  # noqa: PLC0415 - see above

        self._check_loop()
        return msgspec.json.decode(await self.answer_on_loop("wait", child.id), type=Outcome)

    def wait_blocking(self, context: TaskContext, child: ChildJob) -> Outcome:
        """`ChildJob.wait_blocking`."""
        from ...handles.outcomes import Outcome  # noqa: PLC0415 - see above

        return msgspec.json.decode(self.answer_to(connection_of(context), "wait", child.id), type=Outcome)

    def state_of(self, context: TaskContext, child: ChildJob) -> str:
        """`ChildJob.state`."""
        return self.answer_to(connection_of(context), "state", child.id).decode()

    # -- requests ------------------------------------------------------------------------------------------------------

    def answer_to(self, connection: Connection | None, what: What, name: str, payload: bytes = b"") -> bytes:
        """Ask, and wait in this thread. Raises the error of a refusal, and TaskCancelled if the body is to end."""
        question = self._request(what, name, payload, thread=True)
        try:
            self._say(question.frame)
            if connection is None:
                cast("threading.Event", question.over).wait()
            else:
                connection.wait_for(question)
        finally:
            self._leave(question)
        return question.payload()

    async def answer_on_loop(
        self, what: What, name: str, payload: bytes = b"", gave_up: Callable[[], Awaitable[str | None]] = _not_given_up
    ) -> bytes:
        """Ask, and wait on the event loop. gave_up: how the body has given up a wait that is being cancelled. Raises
        the error of a refusal.
        """
        question = self._request(what, name, payload, thread=False)
        way = None
        try:
            self._say(question.frame)
            await cast("anyio.Event", question.over).wait()
        except BaseException as error:
            way = await gave_up() if is_cancellation(error) else None
            raise
        finally:
            self._leave(question, way)
        return question.payload()

    async def answer_despite_cancel(self, what: What, name: str, payload: bytes, *, is_last: bool) -> bytes:
        """`answer_on_loop`, whatever cancels the body meanwhile. is_last: as for `despite_cancel`."""
        question = self._request(what, name, payload, thread=False)
        try:
            self._say(question.frame)
            await despite_cancel(cast("anyio.Event", question.over).wait, lambda _: is_last)
        finally:
            self._leave(question)
        return question.payload()

    def ask_later(
        self, what: What, name: str, payload: bytes, over: Callable[[bytes | None, BaseException | None], None]
    ) -> None:
        """Ask, and call `over` with the answer, or the error of a refusal, on the event loop."""

        def answered(question: RuntimeRequest) -> None:
            del self._asked[question.number]
            try:
                found = question.payload()
            except BaseException as error:
                over(None, error)
            else:
                over(found, None)

        question = self._request(what, name, payload, thread=False, then=answered)
        try:
            self._say(question.frame)
        except BaseException:
            self._leave(question)
            raise

    def tell(self, what: What, name: str, payload: bytes) -> None:
        """Ask for something, and drop the answer."""
        self._say(BodyRequest(self._token, next(self._numbers), what, name, payload))

    def _check_loop(self) -> None:
        if self.loop is None:
            raise RuntimeError("this body runs in a process: use task.submit_blocking(...) and child.wait_blocking()")

    def _request(
        self,
        what: What,
        name: str,
        payload: bytes,
        *,
        thread: bool,
        then: Callable[[RuntimeRequest], None] | None = None,
    ) -> RuntimeRequest:
        """A request that an answer finds. It is sent by the caller, who also leaves it."""
        frame = BodyRequest(self._token, next(self._numbers), what, plain_text(name, "a name"), payload)
        question = self._asked[frame.number] = RuntimeRequest(frame, thread=thread, then=then)
        return question


def _submission(workstream: Workstream, verb: str) -> bytes:
    """A workstream, encoded to be sent. Raises TypeError, and SpecificationError for functions without a path."""
    if not is_a(workstream, Workstream):
        raise TypeError(f"{verb} takes a Workstream, not {shown(workstream, 60)}")
    from ...functions.registry import prepare  # noqa: PLC0415 - see above
    from .paths import Paths  # noqa: PLC0415

    return msgspec.json.encode(prepare(workstream, Paths(), durable=True))


def _raised(refusal: RequestRefusal) -> BaseException:
    """The runtime's refusal, as the exception that it would raise in its own process."""
    kind, text = refusal.kind, refusal.text
    if kind == "SpecificationError":
        from ....actors.spec.validate import SpecificationError  # noqa: PLC0415 - see above

        return SpecificationError(refusal.findings, text)
    if kind in {"JobExists", "RuntimeClosed"}:
        from ...errors import JobExists, RuntimeClosed  # noqa: PLC0415 - see above

        return JobExists(text) if kind == "JobExists" else RuntimeClosed(text)
    made = _KINDS.get(kind)
    return RuntimeError(f"{kind}: {text}") if made is None else made(text)


_KINDS: dict[str, type[BaseException]] = {
    one.__name__: one for one in (AttemptOver, TaskCancelled, ValueError, TypeError, LookupError, RuntimeError)
}
