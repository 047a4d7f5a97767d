"""A worker process: `python -m callboard.runtime.engines.process.child SOCKET PARENT`. Runs one body after another.

Rules:
- The main thread runs bodies, since signals and many libraries need it. A second thread reads frames: it answers
  probes, whatever the body does, and notes that a body is to end.
- A body that is to end learns it from its next heartbeat. If none comes in time, the runtime sends SIGTERM, which
  raises TaskCancelled in the body wherever it is, but never while a frame is being sent. Such a process runs no other
  body: it is unknown what was interrupted. Any other SIGTERM ends the process.
- Between bodies the working folder and the environment's variables are restored.
- It dies with its runtime: by a kernel mechanism if there is one, and when the socket ends.
- The body's requests to the runtime (`runtime_proxy.py`) use the same socket; the second thread receives the answers.
- Processes that the body starts have the attempt's fencing token in their environment, so that they are found after a
  crash.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import faulthandler
import os
import signal
import socket
import sys
import threading
import time
from functools import partial
from io import TextIOWrapper
from queue import SimpleQueue
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ....actors.messages.errors import TaskCancelled
from ....actors.user_code import is_a, text_of
from ...calling import ErrorInfo, Shown
from ...dispatch.abandoned_threads import AbandonedThreads, running_body
from ...functions.import_paths import BodyNotFound
from ...functions.main_program import be_told_of
from ...processes.os_processes import START_PATH, TOKEN, WORKER
from ...text.secrets import Mask
from ...values import NotSerialisable, checked
from ..connection import Again
from ..context import Checkpoint, TaskContext, connection_of
from ..contract import Call
from ..failures import describe
from ..invocation import bind, bind_logging
from ..shortage import NOT_NOW, is_shortage
from ..strays import Beginning, marks_of, strays
from ..usage import Meter
from ..workers.wire import Begin, Frame, Heartbeat, RequestAnswer, ShownFrame, Unpacker, packed
from .flow_proxy import BodyLoop, FlowProxy, loop_in_thread
from .main_module import function_of
from .runtime_proxy import RuntimeProxy
from .signal_safe import SignalSafe
from .wire import Alive, Ask, Done, Halt, Hello, Leave, ProcessReady, ToProcess

if TYPE_CHECKING:
    from collections.abc import Callable

    from .shown_sender import ShownSender

T = TypeVar("T")
_PR_SET_PDEATHSIG = 1
_CHUNK = 65_536
_libc = ctypes.CDLL(None)


class Child:
    """The worker process, with the state that its two threads share."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._sending = threading.Lock()
        self._safe = SignalSafe()
        self._todo: SimpleQueue[Begin | None] = SimpleQueue()
        self._halted: set[int] = set()  # tokens of bodies that are to end
        self._context: TaskContext | None = None  # of the running body, if it takes one
        self._proxy: RuntimeProxy | None = None  # the proxy for that body's requests to the runtime
        self._flow: FlowProxy | None = None  # of that body
        self._loop: BodyLoop | None = None  # of steps: made when one needs it
        self._showing: ShownSender | None = None  # of that body, once it has shown something
        self._token = 0  # of the running body
        self._interruptible = False  # whether SIGTERM may raise at the main thread's present place
        self._interrupted = False  # SIGTERM came while it might not raise

    def listen(self) -> None:
        """Start to receive frames. Raises RuntimeError if no thread can be started."""
        signal.signal(signal.SIGTERM, self._on_term)
        threading.Thread(target=self._read, name="callboard-line", daemon=True).start()

    def run(self) -> None:
        """Run bodies until the runtime's message to end."""
        self._send(ProcessReady())
        while (begin := self._todo.get()) is not None:
            self._safe.do(partial(self._send, self._run(begin)))
            self._halted.discard(begin.token)

    # -- the second thread ---------------------------------------------------------------------------------------------

    def _read(self) -> None:
        decode = msgspec.msgpack.Decoder(ToProcess).decode
        unpacker = Unpacker()
        while data := self._received():
            for body in unpacker.feed(data):
                self._take(decode(body))
        _die_with_all()

    def _received(self) -> bytes:
        try:
            return self._line.recv(_CHUNK)
        except OSError:
            return b""

    def _take(self, frame: ToProcess) -> None:
        match frame:
            case Hello():
                sys.path[:] = frame.path
                sys.argv[:] = frame.argv
                be_told_of(frame.main, frame.folder)
            case Begin():
                self._todo.put(frame)
            case Halt(token=token):
                self._halted.add(token)
                context = self._context
                if context is not None and context.token == token:
                    connection_of(context).cancel()
            case Ask():
                token = self._token
                self._send(Alive((token,) if token else ()))
            case RequestAnswer():
                if (proxy := self._proxy) is not None:
                    proxy.answered(frame)
            case Leave():
                self._todo.put(None)

    def _send(self, frame: Frame) -> None:
        self._send_packed(packed(frame))

    def _send_packed(self, data: bytes) -> None:
        # If the runtime has ended, the thread that reads ends this process.
        with self._sending, contextlib.suppress(ConnectionError):
            self._line.sendall(data)

    # -- a body --------------------------------------------------------------------------------------------------------

    def _run(self, begin: Begin) -> Done:
        """Run one body. Whatever it does becomes its reported end."""
        began = time.monotonic()
        value: Any = None
        error: BaseException | None = None
        signal.signal(signal.SIGTERM, self._on_term)  # an earlier body may have changed it
        os.environ[TOKEN] = str(begin.token)
        self._token = begin.token
        meter, beginning = Meter(), Beginning()
        try:
            value = self._call(begin)
        except BaseException as raised:
            self._interruptible = False
            error = raised
        self._safe.do(self._end_showing)
        if self._flow is not None and not is_a(error, TaskCancelled):
            error = self._flow.changed(begin.token) or error
        unasked = None if self._flow is None else self._flow.end()
        self._token, self._context, self._proxy, self._flow = 0, None, None, None
        duration = time.monotonic() - began
        cpu, memory = meter.used()
        _flush()
        ended = self._returned(begin.token, value, duration) if error is None else self._raised(begin, error, duration)
        left = strays(beginning.numbers(), begin.token, os.getpgrp(), marks_of(os.environ))
        return msgspec.structs.replace(
            ended, cpu_seconds=cpu, peak_memory_bytes=memory, left_behind=left, unasked=unasked
        )

    def _call(self, begin: Begin) -> Any:
        func = function_of(begin.function)
        context = None
        logging = contextvars.copy_context()
        if (facts := begin.facts) is not None:
            proxy = self._proxy = RuntimeProxy(begin.token, self._say)
            if begin.flow is not None:
                self._flow = FlowProxy(proxy, begin.flow, self._loop_of_steps)
            context = self._context = TaskContext(
                task=facts.task, token=begin.token, attempt=facts.attempt, job_id=facts.job_id,
                workstream_id=facts.workstream_id, results=facts.results, details=facts.details, saved=facts.saved,
                args=facts.args, secrets=begin.secrets, mask=_mask(begin), child_jobs=proxy, approvals=proxy,
                flows=self._flow,
            )  # fmt: skip
            connection_of(context).attach(lambda details: self._beat(begin.token, details), raises=True)
        if begin.bound:
            bind_logging(logging, begin.bound)
        call = Call(token=begin.token, func=func, context=context, mask=_mask(begin), flows=self._flow)
        logging.run(running_body.set, (_ABANDONED_THREADS, "", call))  # a step finds its flow there
        bound = bind(call)
        if begin.token in self._halted:  # from here on `_take` stops its context
            raise TaskCancelled("cancelled before it started")
        surroundings = _surroundings()
        try:
            self._interruptible = True
            value = logging.run(bound)
        finally:
            self._interruptible = False
            _put_back(*surroundings)
            if context is not None:
                connection_of(context).detach()
        if type(value) is CoroutineType:
            value.close()
            raise TypeError("the function returned a coroutine, which a process cannot run; declare it `async def`")
        if context is not None and connection_of(context).again is not None:
            return connection_of(context).returned(value)
        return value

    def _loop_of_steps(self) -> BodyLoop:
        if self._loop is None:
            self._loop = loop_in_thread()
        return self._loop

    def _beat(self, token: int, details: Any) -> None:
        if isinstance(details, Shown):
            self._whole(partial(self._show, token), details)
            return
        saved = isinstance(details, Checkpoint)
        self._say(Heartbeat(token, details.value if saved else details, saved))

    def _show(self, token: int, shown: Shown) -> None:
        """Have progress or text sent. Any thread of the body may call it; an earlier body's is dropped."""
        if token != self._token:
            return
        with _making:
            if (showing := self._showing) is None:
                from .shown_sender import ShownSender  # noqa: PLC0415 - few bodies show something

                showing = self._showing = ShownSender(lambda what: self._send(ShownFrame(token, what)))
        showing.add(shown)

    def _end_showing(self) -> None:
        """Send the rest of what the body has shown."""
        showing, self._showing = self._showing, None
        if showing is not None:
            showing.end()

    def _say(self, frame: Frame) -> None:
        """Send a frame from the body completely, whatever signal comes meanwhile."""
        self._whole(self._send_packed, packed(frame))

    def _whole(self, do: Callable[[T], object], what: T) -> None:
        """Do something for the body to its end, whatever signal comes meanwhile."""
        if threading.current_thread() is not threading.main_thread():  # signals run in the main thread only
            do(what)
            return
        self._interruptible = False
        try:
            self._safe.do(partial(do, what))
        finally:  # a signal's handler of the body may raise
            self._interruptible = True
        if self._interrupted:
            raise TaskCancelled(_TOLD)

    def _on_term(self, number: int, _: object) -> None:
        if self._token not in self._halted:  # not the runtime's stop: another process sends the signal
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        elif self._interruptible:
            self._interruptible = False
            raise TaskCancelled(_TOLD)
        else:
            self._interrupted = True

    @staticmethod
    def _returned(token: int, value: Any, duration: float) -> Done:
        try:
            if type(value) is Again:
                return Done(token, "again", value.args, duration=duration)
            return Done(token, "ok", checked(value), duration=duration)
        except NotSerialisable as error:
            info = ErrorInfo(type="result_not_serialisable", message=str(error), permanent=True, category="permanent")
            return Done(token, "failed", error=info, duration=duration)

    def _raised(self, begin: Begin, error: BaseException, duration: float) -> Done:
        token = begin.token
        if is_a(error, TaskCancelled) and token in self._halted:
            info = ErrorInfo(type="cancelled", message=text_of(error))
            return Done(token, "cancelled", error=info, duration=duration)
        if is_a(error, BodyNotFound):
            info = ErrorInfo(type="body_not_found", message=text_of(error), permanent=True, category="permanent")
        else:
            info = describe(error, _mask(begin))
        return Done(token, "failed", error=info, duration=duration)


_TOLD = "it was told to stop"
_making = threading.Lock()
_ABANDONED_THREADS = AbandonedThreads()


def _mask(begin: Begin) -> Mask | None:
    return Mask(begin.secrets.values()) if begin.secrets else None


def _surroundings() -> tuple[str | None, dict[str, str]]:
    """The working folder (None if it was deleted), and the environment's variables."""
    folder = None
    with contextlib.suppress(OSError):
        folder = os.getcwd()  # noqa: PTH109 - a text, for comparison
    return folder, dict(os.environ)


def _put_back(folder: str | None, variables: dict[str, str]) -> None:
    """Restore the working folder and the variables after a body."""
    now, changed = _surroundings()
    if folder is not None and now != folder:
        with contextlib.suppress(OSError):  # the body may have deleted it
            os.chdir(folder)
    if changed != variables:
        for name in changed.keys() - variables.keys():
            del os.environ[name]
        os.environ.update(variables)


def _flush() -> None:
    """Write all that the body has printed to the pipe before its end is reported."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    with contextlib.suppress(Exception):
        _libc.fflush(None)


def _die_with_all() -> None:
    """Kill everything that was started here: the runtime has ended."""
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _die_with(parent: int) -> None:
    """Have the system kill this process when its parent ends, if it can; also if the parent has ended already."""
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        _die_with_all()


def _clean_environment() -> None:
    """Remove the variables that only the start of this process needed: the bodies' children inherit the rest."""
    os.environ.pop(WORKER, None)
    if (before := os.environ.pop(START_PATH, None)) is not None:
        os.environ["PYTHONPATH"] = before
    else:
        os.environ.pop("PYTHONPATH", None)


def main() -> None:
    """Run as a worker process; exit with NOT_NOW if a shortage prevents the start."""
    try:
        child = _ready()
    except (OSError, RuntimeError, MemoryError) as error:
        if is_shortage(error):
            os._exit(NOT_NOW)
        raise
    child.run()


def _ready() -> Child:
    child = Child(be_a_child())
    child.listen()
    return child


def be_a_child() -> socket.socket:
    """Set up this process as a worker process, which ends with its parent. Returns its socket to the parent."""
    descriptor, parent = int(sys.argv[1]), int(sys.argv[2])
    _die_with(parent)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the application may have blocked signals
    faulthandler.enable()  # crashes are reported in the body's output
    os.set_inheritable(descriptor, False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    _clean_environment()
    return socket.socket(fileno=descriptor)


if __name__ == "__main__":
    main()
