"""A worker on Ray: an actor in which this library's engines run the orders of its runtime.

An async function runs on the actor's own event loop, a plain one in a process of the actor
(`runtime/engines/process/engine.py`), a command in a process group (`runtime/engines/command/engine.py`): so each
follows the same rules as on the runtime's machine.

Rules:
- Nothing here knows Ray. Ray calls `push`, `poll` and `probe`, each in its own thread, so that none delays another.
  `probe` waits for nothing: it answers as long as Python's lock is available.
- Async bodies have their own loop (`callboard-bodies`): a body that blocks it blocks no command, no process and no
  answer.
- Each running plain body has its own process. If a process dies, only its body is lost.
- Messages wait in `RayOutbox` until the runtime polls them. The last batch can be polled again.
- An async body that holds Python's lock blocks the whole actor. Then its runtime has the process observed from outside,
  on its node (`cluster.py`), which also tells the warden that the runtime is alive.
- No child outlives this process, and this process does not outlive its runtime: `warden.py`.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import msgspec

from ...calling import ErrorInfo, Outcome, Shown
from ...dispatch.runners import RunnerPool
from ...functions.import_paths import BodyNotFound, on_another_machine
from ...functions.main_program import be_told_of
from ...functions.signatures import takes_context
from ...text.secrets import Mask
from ..command.engine import CommandEngine
from ..context import Checkpoint, TaskContext
from ..contract import Call, CommandCall, ProcessCall
from ..failures import describe
from ..heartbeats import Heartbeats
from ..loop import LoopEngine
from ..loop_thread import LoopThread
from ..process.engine import ProcessEngine
from ..process.flow_proxy import BodyLoop, FlowProxy
from ..process.main_module import function_of
from ..process.runtime_proxy import RuntimeProxy
from ..workers.wire import (
    Begin,
    BodyRequest,
    Frame,
    Heartbeat,
    RequestAnswer,
    RequestWithdrawn,
    ShownFrame,
    Unpacker,
    packed,
)  # fmt: skip
from .cluster import own_node
from .outbox import PrintedFile, RayOutbox
from .wire import ActorReady, CallEnd, Order, OutputPart, Stop, ToActor, Welcome

MARK = "CALLBOARD_ACTOR"
"""The environment variable of every process that an actor starts."""
_LOOKS = 0.25  # seconds between two reads of printed output
_WARDEN = Path(__file__).with_name("warden.py")


class RunningCall(msgspec.Struct, eq=False):
    """A running call, by its token. process_number: the number of the process of a plain function."""

    order: Order
    printed: PrintedFile
    heartbeats: Heartbeats
    results: Path | None = None
    process_number: int | None = None
    proxy: RuntimeProxy | None = None
    flow: FlowProxy | None = None
    last: str = ""


class RayWorker:
    """The actor. Ray calls its public methods in threads; everything else happens on the loop of `_work`."""

    def __init__(self, welcome: bytes) -> None:
        settings = self._told = msgspec.msgpack.decode(welcome, type=Welcome)
        node = own_node()
        sys.path += [one for one in settings.path if one not in sys.path and Path(one or ".").exists()]
        sys.argv[:] = settings.argv
        be_told_of(settings.main, settings.folder)
        os.environ.update(settings.environment)
        os.environ[MARK] = uuid.uuid4().hex
        self._folder = Path(tempfile.mkdtemp(prefix="callboard-ray-"))
        self._out = RayOutbox()
        self._held: dict[int, RunningCall] = {}
        self._free: list[int] = []  # numbers of idle processes
        self._lives: dict[int, int] = {}  # by number: the incarnation of its process
        self._begun: anyio.Event | None = None  # set when a call begins whose output has to be read
        self._pushing = threading.Lock()
        self._taken = 0  # number of batches received
        self._early: dict[int, bytes] = {}
        self._decode = msgspec.msgpack.Decoder(ToActor).decode
        self._process = ProcessEngine(asked=self._asked)
        self._command = CommandEngine()
        self._work = LoopThread("callboard-work", self._open)
        self._bodies: LoopThread | None = None  # created with the first async function
        self._loop: LoopEngine
        self._body_loop: BodyLoop
        self._warden = _start_warden(self._folder, settings.lease)  # last: a failed actor must leave no warden
        self._out.put(packed(ActorReady(socket.gethostname(), os.getpid(), str(self._folder), node)))

    # -- called by Ray -------------------------------------------------------------------------------------------------

    def push(self, number: int, data: bytes) -> None:
        """Receive a batch of frames: each number once, in order."""
        self._heard()
        with self._pushing:
            if number > self._taken:
                self._early[number] = data
            while (batch := self._early.pop(self._taken + 1, None)) is not None:
                self._taken += 1
                frames = [self._decode(body) for body in Unpacker().feed(batch)]
                self._work.post(self._take, frames)

    def poll(self, after: int, patience: float) -> bytes:
        """The batch of messages after that number; empty if there is none within so many seconds."""
        self._heard()
        return self._out.batch(after, patience)

    def probe(self) -> tuple[int, ...]:
        """The tokens of all running calls."""
        return tuple(self._held)

    def _heard(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._warden, b".")

    # -- orders, on the loop -------------------------------------------------------------------------------------------

    async def _open(self, group: Any) -> None:
        await self._process.open()
        await self._command.open()
        group.start_soon(self._look)

    async def _look(self) -> None:
        """Send output while it is being printed."""
        while True:
            watched = [(token, call) for token, call in self._held.items() if not call.order.on_loop]
            if not watched:
                self._begun = anyio.Event()
                await self._begun.wait()
            for token, call in watched:
                engine = self._command if call.order.line is not None else self._process
                if (last := engine.tail(token)) != call.last:
                    call.last = last
                    self._out.put(call.printed)
                    self._out.put(packed(OutputPart(token, last=last)))
            await anyio.sleep(_LOOKS)

    def _take(self, frames: list[ToActor]) -> None:
        for frame in frames:
            match frame:
                case Order():
                    self._begin(frame)
                case Stop():
                    self._stop(frame)
                case RequestAnswer(token=token):
                    self._answer(token, frame)

    def _begin(self, order: Order) -> None:
        if (begin := order.begin) is not None:
            found = on_another_machine(begin.function, begin.text)
            order = msgspec.structs.replace(order, begin=msgspec.structs.replace(begin, function=found))
        printed = PrintedFile(order.token, self._folder / f"{order.token}.out", order.output_limit)
        call = self._held[order.token] = RunningCall(order, printed, Heartbeats())
        if self._begun is not None and not order.on_loop:
            self._begun.set()
        try:
            if order.line is not None:
                self._begin_command(call)
            elif order.on_loop:
                self._bodies = self._bodies or LoopThread("callboard-bodies", self._open_bodies)
                self._bodies.post(self._begin_on_loop, call, order.begin)
            else:
                self._begin_in_process(call, order.begin)
        except Exception as error:
            self._over(_failed(order.token, error))

    def _begin_command(self, held: RunningCall) -> None:
        order, line = held.order, held.order.line
        assert line is not None  # noqa: S101 - checked before
        env = line.env
        if line.results is not None:
            held.results = self._folder / f"{order.token}.results.json"
            held.results.write_bytes(line.results)
            env = {**env, "CALLBOARD_RESULTS": str(held.results)}
        command = CommandCall(
            argv=line.argv, shell=line.shell, cwd=line.cwd, env=env, expected_exit_codes=line.expected_exit_codes,
            output_path=held.printed.path, output_limit=order.output_limit, mask=_mask(order.secrets),
        )  # fmt: skip
        self._command.start(Call(token=order.token, command=command, grace=order.grace), self._over, self._beat)

    def _begin_in_process(self, held: RunningCall, begin: Begin | None) -> None:
        order = held.order
        assert begin is not None  # noqa: S101 - other orders are commands
        process_number = held.process_number = heapq.heappop(self._free) if self._free else len(self._lives)
        process = ProcessCall(
            function=begin.function, worker=str(process_number), incarnation=self._lives.setdefault(process_number, 1),
            output_path=held.printed.path, output_limit=order.output_limit, recycle_after=order.recycle_after,
            secrets=begin.secrets, flow=begin.flow,
        )  # fmt: skip
        call = Call(
            token=order.token, process=process, context=_context(begin, None, None), bound=begin.bound,
            grace=order.grace, mask=_mask(begin.secrets.values()),
        )  # fmt: skip
        self._process.start(call, self._over, self._beat)

    def _stop(self, stop: Stop) -> None:
        call = self._held.get(stop.token)
        if call is None:
            return
        if call.order.on_loop:
            if self._bodies is not None:
                self._bodies.post(self._stop_on_loop, stop)
        else:
            engine = self._command if call.order.line is not None else self._process
            engine.stop(stop.token, force=stop.force)

    def _answer(self, token: int, answered: RequestAnswer) -> None:
        call = self._held.get(token)
        if call is not None and call.proxy is not None:
            call.proxy.answered(answered)
        elif call is not None:
            self._process.answer(answered)

    # -- events of running calls, on the loop --------------------------------------------------------------------------

    def _over(self, outcome: Outcome) -> None:
        call = self._held.pop(outcome.token, None)
        if call is None:
            return
        if (process_number := call.process_number) is not None:
            self._lives[process_number] += (
                outcome.status == "lost"
            )  # the process has ended: the number gets another process
            heapq.heappush(self._free, process_number)
        if call.results is not None:
            call.results.unlink(missing_ok=True)
        call.printed.end()
        self._out.put(call.printed)
        self._out.put(packed(CallEnd(outcome)))

    def _beat(self, token: int, details: Any) -> None:
        """Handle a heartbeat, on either loop."""
        call = self._held.get(token)
        if call is not None and call.heartbeats.take(details):
            self._out.put(partial(_heartbeats, token, call.heartbeats))

    def _asked(self, _: TaskContext, want: BodyRequest | RequestWithdrawn) -> None:
        self._say(want)

    def _say(self, frame: Frame) -> None:
        self._out.put(packed(frame))

    # -- async functions, on their loop --------------------------------------------------------------------------------

    async def _open_bodies(self, group: Any) -> None:
        runners = RunnerPool(group)
        self._loop, self._body_loop = LoopEngine(runners), BodyLoop(runners, self._post_to_bodies)
        await self._loop.open()

    def _post_to_bodies(self, func: Callable[..., None], *args: Any) -> None:
        if self._bodies is not None:
            self._bodies.post(func, *args)

    def _begin_on_loop(self, held: RunningCall, begin: Begin) -> None:
        order = held.order
        try:
            func = function_of(begin.function)
            proxy = held.proxy = RuntimeProxy(order.token, self._say, self._body_loop)
            if begin.flow is not None:
                held.flow = FlowProxy(proxy, begin.flow, lambda: self._body_loop)
                if begin.flow.kept:
                    func = _replaying(func, held.flow)
            call = Call(
                token=order.token, func=func, context=_context(begin, proxy, held.flow), bound=begin.bound or None,
                grace=order.grace, mask=_mask(begin.secrets.values()), flows=held.flow,
            )  # fmt: skip
            self._loop.start(call, self._over_on_loop, self._beat)
        except Exception as error:
            self._over_on_loop(_failed(order.token, error))

    def _stop_on_loop(self, stop: Stop) -> None:
        self._loop.stop(stop.token, force=stop.force)

    def _over_on_loop(self, outcome: Outcome) -> None:
        call = self._held.get(outcome.token)
        if call is not None and call.flow is not None:
            outcome = msgspec.structs.replace(outcome, unasked=call.flow.end())
        self._work.post(self._over, outcome)


def _replaying(func: Callable[..., Any], flow: FlowProxy) -> Callable[[TaskContext], Awaitable[Any]]:
    """An async body that gets the kept steps of its flow before it begins: later, on a loop, it could not wait."""

    async def body(task: TaskContext) -> Any:
        await flow.load()
        return await (func(task) if takes_context(func) else func())

    return body


def _context(begin: Begin, proxy: RuntimeProxy | None, flow: FlowProxy | None) -> TaskContext | None:
    facts = begin.facts
    if facts is None:
        return None
    return TaskContext(
        task=facts.task, token=begin.token, attempt=facts.attempt, job_id=facts.job_id,
        workstream_id=facts.workstream_id, results=facts.results, details=facts.details, saved=facts.saved,
        args=facts.args, secrets=begin.secrets, mask=_mask(begin.secrets.values()), child_jobs=proxy, approvals=proxy,
        flows=flow,
    )  # fmt: skip


def _mask(values: Iterable[str]) -> Mask | None:
    values = list(values)
    return Mask(values) if values else None


def _heartbeats(token: int, heartbeats: Heartbeats) -> bytes:
    """The frames of what a body has shown, and of its latest heartbeat and checkpoint."""
    frames: list[bytes] = []

    def say(details: Any) -> None:
        if isinstance(details, Shown):
            frames.append(packed(ShownFrame(token, details)))
            return
        saved = isinstance(details, Checkpoint)
        frames.append(packed(Heartbeat(token, details.value if saved else details, saved)))

    heartbeats.pass_on(say)
    return b"".join(frames)


def _failed(token: int, error: Exception) -> Outcome:
    """The outcome of a call that could not be started."""
    if isinstance(error, BodyNotFound):
        info = ErrorInfo(type="body_not_found", message=str(error), permanent=True, category="permanent")
    else:
        info = describe(error)
    return Outcome(token=token, status="failed", error=info)


def _start_warden(folder: Path, lease: float) -> int:
    """Start the process that ends everything after this process. Returns the descriptor for its input."""
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    reading, writing = os.pipe()
    try:
        subprocess.run(  # noqa: S603 - our own program
            [sys.executable, "-I", "-S", str(_WARDEN), f"{MARK}={os.environ[MARK]}", str(os.getpid()), str(lease),
             str(folder)],
            stdin=reading, env=environment, check=True,
        )  # fmt: skip
    finally:
        os.close(reading)
    return writing
