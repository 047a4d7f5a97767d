"""A signal's handler of a body raises while a frame is sent: the body gets its error, and the runtime is notified."""

from __future__ import annotations

import select
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from callboard.actors.spec.model import Approval
from callboard.runtime.calling import Progress, Shown
from callboard.runtime.engines.context import TaskContext, connection_of
from callboard.runtime.engines.process.child import Child
from callboard.runtime.engines.process.runtime_proxy import RuntimeProxy
from callboard.runtime.engines.process.signal_safe import SignalSafe
from callboard.runtime.engines.process.wire import FromProcess
from callboard.runtime.engines.workers.wire import BodyRequest, Heartbeat, RequestWithdrawn, ShownFrame, Unpacker


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


LARGE = "x" * 4_000_000  # more than a socket holds


class Peer:
    """The runtime's end of a socket: interrupts the process in the middle of the first frame, and only then reads."""

    def __init__(self, reads: threading.Event) -> None:
        ours, self._line = socket.socketpair()
        self.child = Child(ours)
        self.frames: list[Any] = []
        self._reads = reads
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        select.select([self._line], [], [])
        while not self._reads.wait(0.01):  # a signal just before the main thread waits is handled only after the wait
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)
        unpacker, decode = Unpacker(), msgspec.msgpack.Decoder(FromProcess).decode
        while data := self._line.recv(65_536):
            self.frames += map(decode, unpacker.feed(data))

    def all_frames(self) -> list[Any]:
        """What has come when the process has closed its end."""
        self.child._line.close()
        self._thread.join()
        self._line.close()
        return self.frames


def test_a_handler_that_raises_in_the_middle_of_a_frame_does_not_cut_it() -> None:
    reads = threading.Event()

    def raises(*_: object) -> None:
        if not reads.is_set():
            reads.set()
            raise TimeoutError("the body's own limit")

    signal.signal(signal.SIGALRM, raises)
    peer = Peer(reads)
    with pytest.raises(TimeoutError, match="own limit"):
        peer.child._say(Heartbeat(1, LARGE))
    peer.child._say(Heartbeat(1, "the next"))
    assert peer.all_frames() == [Heartbeat(1, LARGE), Heartbeat(1, "the next")]


def test_a_handler_that_reports_in_the_middle_of_a_frame_does_so_behind_it() -> None:
    reads = threading.Event()
    shown = Shown(Progress(1, 2, "from a handler"))

    def reports(*_: object) -> None:
        if not reads.is_set():
            reads.set()
            child._beat(1, "from a handler")
            child._beat(1, shown)

    signal.signal(signal.SIGALRM, reports)
    peer = Peer(reads)
    child = peer.child
    child._token = 1
    child._beat(1, LARGE)
    child._beat(1, "the next")
    child._safe.do(child._end_showing)
    large, *beats = [one for one in peer.all_frames() if type(one) is Heartbeat]
    assert large == Heartbeat(1, LARGE)
    assert sorted(one.details for one in beats) == ["from a handler", "the next"]
    assert [one.shown for one in peer.frames if type(one) is ShownFrame] == [shown]


def test_what_is_done_for_the_main_thread_raises_there_and_in_its_order() -> None:
    safe, done = SignalSafe(), list[str]()

    def fails() -> None:
        done.append(threading.current_thread().name)
        raise RuntimeError("can't start new thread")

    with pytest.raises(RuntimeError, match="new thread"):
        safe.do(fails)
    safe.do(lambda: done.append("next"))
    assert done == ["callboard-sender", "next"]
    thread = threading.Thread(
        target=safe.do, args=(lambda: done.append(threading.current_thread().name),), name="other"
    )
    thread.start()
    thread.join()
    assert done[-1] == "other"


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
