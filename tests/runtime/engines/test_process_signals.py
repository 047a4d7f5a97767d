"""A signal's handler of a body raises while a frame is sent: the body gets its error, and the runtime is notified."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest

from callboard.actors.spec.model import Approval
from callboard.runtime.engines.context import TaskContext, connection_of
from callboard.runtime.engines.process.child import Child
from callboard.runtime.engines.process.runtime_proxy import RuntimeProxy
from callboard.runtime.engines.workers.wire import BodyRequest, Heartbeat, RequestWithdrawn


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    def raises(*_: object) -> None:
        raise TimeoutError("the body's own limit")

    before = signal.signal(signal.SIGALRM, raises)
    yield
    signal.signal(signal.SIGALRM, before)


class Line:
    """A socket that sends everything, and then the process gets SIGALRM."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def sendall(self, data: bytes) -> None:
        self.sent.append(data)
        if len(self.sent) == 1:
            signal.raise_signal(signal.SIGALRM)


class LineWithoutPeer:
    """The socket after the end of the runtime."""

    def sendall(self, _: bytes) -> None:
        raise BrokenPipeError


def beat_through(line: Any) -> None:
    child = Child(line)
    child._say(Heartbeat(1, "alive"))
    child._say(Heartbeat(1, "still alive"))


def test_the_error_of_a_handler_reaches_the_body_and_the_end_of_the_runtime_does_not() -> None:
    with pytest.raises(TimeoutError, match="own limit"):
        beat_through(Line())
    beat_through(LineWithoutPeer())


def test_after_the_error_of_a_handler_the_order_to_stop_interrupts_the_body_as_before() -> None:
    line: Any = Line()
    child = Child(line)
    child._interruptible = True
    with pytest.raises(TimeoutError):
        child._say(Heartbeat(1, "alive"))
    assert child._interruptible
    child._say(Heartbeat(1, "the next frame is sent"))
    assert len(line.sent) == 2


def test_a_request_that_a_handler_interrupts_once_it_is_sent_is_withdrawn() -> None:
    sent: list[object] = []

    def say(frame: object) -> None:
        sent.append(frame)
        if len(sent) == 1:
            signal.raise_signal(signal.SIGALRM)

    proxy = RuntimeProxy(7, say)
    context = TaskContext(task="t", token=7, attempt=1, job_id="j", workstream_id="w", results={})
    with pytest.raises(TimeoutError):
        proxy.decision_blocking(7, "prod", Approval(), connection_of(context))
    request, withdrawn = sent
    assert isinstance(request, BodyRequest)
    assert withdrawn == RequestWithdrawn(7, request.number)
    with pytest.raises(TimeoutError):
        sent.clear()
        proxy.answer_to(connection_of(context), "state", "j/t/child")
    assert isinstance(sent[1], RequestWithdrawn)
