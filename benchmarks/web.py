"""The cost of the board: `python benchmarks/web.py [--quick] [--only NAME]`.

`streams`: a runtime does about 1,000 transitions a second, in jobs that arrive at a steady rate, with its journal on
the disk and its board served in the same event loop. It is measured without readers, then with 1,000 readers of
`/api/events`, each with its own socket, in another process; then without readers again, since machines are shared. The
figure is the processor time of the runtime's whole process, per task. Each reader reads like a browser (with gzip, in
the chunks of HTTP) and counts the events: events that it did not get are lost.

`task`: the processor time of a GET of a task, compared with an empty handler of the same framework, both called without
a server. The best of many short rounds counts, since machines are shared.

`approve`: the same steady work; meanwhile tasks are approved one after the other over HTTP (without a server, too), and
as many, in turn, in the program. Both answers come when the approval is durable, so the difference is the cost of HTTP.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import selectors
import socket
import sys
import time
import zlib
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from common import Figure, figures_table, on_disk, run_on
from litestar import Litestar, get

from callboard import Approval, Runtime, Task, Workstream
from callboard.runtime.web.http.serve import listening, serving
from callboard.web import board

READERS = 1_000
RATE = 1_000
"""Transitions a second."""
PER_TASK = 7
JOB = 10
"""Tasks of a job."""
SECONDS = 10.0
REQUEST = b"GET /api/events%b HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept-Encoding: %b\r\n\r\n"
TOLD = b"event: transition\n"


async def nothing() -> None:
    pass


class Spent(NamedTuple):
    """The use during steady work: processor seconds of the process and of the loop's thread."""

    tasks: int
    transitions: int
    process: float
    thread: float

    @property
    def per_task(self) -> float:
        return self.process / self.tasks


class Socket:
    """The socket of one reader, with its counts."""

    def __init__(self, port: int, encoding: bytes) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(REQUEST % (b"", encoding))
        self.socket.setblocking(False)
        self.told = 0
        self.bytes = 0
        self._sent = b""  # received bytes that are not parsed yet
        self._unpack = zlib.decompressobj(zlib.MAX_WBITS | 16) if encoding == b"gzip" else None
        self._rest = b""  # the beginning of an event

    def take(self) -> None:
        """Parse the received bytes."""
        data = self.socket.recv(1 << 20)
        new = not self.bytes
        self.bytes += len(data)
        data = self._sent + data
        if new:
            data = data.partition(b"\r\n\r\n")[2]
        parts: list[bytes] = []
        place = 0
        while (end := data.find(b"\r\n", place)) >= 0:
            size = int(data[place:end], 16)
            if len(data) < end + 4 + size:
                break
            parts.append(data[end + 2 : end + 2 + size])
            place = end + 4 + size
        self._sent = data[place:]
        told = b"".join(parts)
        told = self._rest + (told if self._unpack is None else self._unpack.decompress(told))
        cut = told.rfind(b"\n") + 1
        self.told += told.count(TOLD, 0, cut)
        self._rest = told[cut:]


def read(port: int, readers: int, encoding: bytes, pipe: Connection) -> None:
    """The process of the readers: reports when all are connected, and, on request, the counts of each."""
    selector = selectors.DefaultSelector()
    sockets = [Socket(port, encoding) for _ in range(readers)]
    for one in sockets:
        selector.register(one.socket, selectors.EVENT_READ, one)
    selector.register(pipe, selectors.EVENT_READ, None)
    waiting = readers
    while True:
        for key, _ in selector.select():
            one = key.data
            if one is not None:
                new = not one.bytes
                one.take()
                waiting -= new
                if new and not waiting:
                    pipe.send("connected")
                continue
            if pipe.recv() == "stop":
                return
            pipe.send([one.told for one in sockets])


async def steady(runtime: Runtime, seconds: float) -> Spent:
    """Submit jobs at a steady rate for so long, and wait for their ends."""
    pause = JOB * PER_TASK / RATE
    before = runtime._services.hub.told
    process, thread = time.process_time(), time.thread_time()
    began, jobs = time.perf_counter(), []
    while (now := time.perf_counter() - began) < seconds:
        tasks = [Task(f"t{number}", run=nothing) for number in range(JOB)]
        jobs.append(await runtime.submit(Workstream("steady", tasks=tasks)))
        await asyncio.sleep(max(0.0, len(jobs) * pause - now))
    for job in jobs:
        await job.wait()
    await runtime._services.settled(5.0)
    return Spent(
        len(jobs) * JOB, runtime._services.hub.told - before, time.process_time() - process, time.thread_time() - thread
    )  # fmt: skip


async def measure(folder: Path, readers: int, seconds: float, encoding: bytes) -> tuple[list[Spent], int]:
    """Measure without, with and without readers. Returns the use of each time, and the number of lost events."""
    listener = listening("127.0.0.1", 0)
    port = listener.getsockname()[1]
    async with AsyncExitStack() as stack:
        runtime = await stack.enter_async_context(Runtime(folder / "streams.db"))
        await stack.enter_async_context(serving(board(runtime), listener))
        await steady(runtime, 1.0)
        spent = [await steady(runtime, seconds)]
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=read, args=(port, readers, encoding, theirs))
        process.start()
        await asyncio.to_thread(ours.recv)
        first = runtime._services.hub.told
        spent.append(await steady(runtime, seconds))
        expected = runtime._services.hub.told - first
        told = await _told(ours, expected)
        ours.send("stop")
        await asyncio.to_thread(process.join)
        spent.append(await steady(runtime, seconds))
        lost = sum(max(0, expected - one) for one in told)
        return spent, lost


async def _told(pipe: Connection, expected: int) -> list[int]:
    """The events of each reader, once it has all, or gets no more for a while."""
    before = -1
    while True:
        pipe.send("how much")
        told: list[int] = await asyncio.to_thread(pipe.recv)
        if min(told) >= expected or sum(told) == before:
            return told
        before = sum(told)
        await asyncio.sleep(1.0)


def streams(folder: Path, quick: bool) -> list[Figure]:
    """Readers of the event stream."""
    readers, seconds = (200, 3.0) if quick else (READERS, SECONDS)
    spent, lost = run_on("asyncio", measure, folder, readers, seconds, b"gzip")
    without = (spent[0].per_task + spent[2].per_task) / 2
    loop = (spent[0].thread / spent[0].tasks + spent[2].thread / spent[2].tasks) / 2
    more, more_of_loop = spent[1].per_task - without, spent[1].thread / spent[1].tasks - loop
    rate = spent[1].transitions / seconds
    what = f"{readers:,} readers of {rate:,.0f} transitions/s"
    return [
        Figure(f"events lost by {what}", f"{lost:,}", "0", lost == 0),
        Figure("processor time per task, without readers", f"{without * 1e6:,.0f} us"),
        Figure(f"the same with {what}", f"{more / without:+.0%}", "+20 %", more <= 0.2 * without),
        Figure("per event and reader", f"{more * spent[1].tasks / spent[1].transitions / readers * 1e9:,.0f} ns"),
        Figure("of the event loop's own thread", f"{more_of_loop / loop:+.0%} of {loop * 1e6:,.0f} us"),
    ]


@get("/empty")
async def empty() -> None:
    """Do nothing: the lower bound."""


async def once(app: Any, path: str) -> None:
    """One request, and its answer."""
    asked = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"", "state": {},
        "headers": [(b"host", b"127.0.0.1"), (b"accept", b"*/*")], "http_version": "1.1", "scheme": "http",
        "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1), "root_path": "",
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200, message

    await app(asked, receive, send)


async def cost(app: Any, path: str, requests: int) -> float:
    """Processor seconds of a request."""
    began = time.thread_time()
    for _ in range(requests):
        await once(app, path)
    return (time.thread_time() - began) / requests


async def compare(folder: Path, rounds: int) -> tuple[float, float]:
    floor = Litestar([empty], openapi_config=None)
    runtime = Runtime(folder / "task.db", drain_deadline=0.0)
    app = board(runtime)
    async with runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("held", run=nothing, hold=Approval())]), id="j")
        async for _ in job.events(to_state="held"):
            break
        pairs = []
        for _ in range(rounds):
            pairs.append((await cost(floor, "/empty", 200), await cost(app, "/api/jobs/j/tasks/held", 200)))
            await asyncio.sleep(0.001)
    return min(one for one, _ in pairs), min(one for _, one in pairs)


def task(folder: Path, quick: bool) -> list[Figure]:
    """A GET of a task, compared with an empty handler."""
    least, told = run_on("asyncio", compare, folder, 15 if quick else 60)
    share = least / told
    return [
        Figure("GET of a task, of the rate of an empty handler", f"{share:.2f}", "0.50", share >= 0.5),
        Figure("processor time of one", f"{told * 1e6:.0f} us, the empty one {least * 1e6:.0f} us"),
    ]


APPROVALS, PAUSE, WARM = 400, 0.01, 20


async def post(app: Any, path: str, body: bytes) -> None:
    """One request with a body, and its answer."""
    asked = {
        "type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"", "state": {},
        "headers": [
            (b"host", b"127.0.0.1"), (b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))
        ],
        "http_version": "1.1", "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1),
        "root_path": "",
    }  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200, message

    await app(asked, receive, send)


async def decide(folder: Path, count: int) -> tuple[list[float], list[float], Spent]:
    """Approve one task over HTTP, one in the program, and so on, under load. Returns the times, the shortest first."""
    runtime = Runtime(folder / "approve.db")
    app = board(runtime)
    http: list[float] = []
    here: list[float] = []
    async with runtime:
        held = [Task(f"{way}-{n}", run=nothing, hold=Approval()) for way in ("http", "here") for n in range(count)]
        job = await runtime.submit(Workstream("held", tasks=held), id="held")
        load = asyncio.create_task(steady(runtime, count * 3 * PAUSE))
        for number in range(count):
            began = time.perf_counter()
            body = b'{"by": "ana", "request_id": "http-%d"}' % number
            await post(app, f"/api/jobs/held/tasks/http-{number}/approve", body)
            http.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE)
            began = time.perf_counter()
            await job.task(f"here-{number}").approve(by="ana", request_id=f"here-{number}")
            here.append(time.perf_counter() - began)
            await asyncio.sleep(PAUSE)
        return sorted(http[WARM:]), sorted(here[WARM:]), await load


def approve(folder: Path, quick: bool) -> list[Figure]:
    """The cost that HTTP adds to an approval under load."""
    count = 100 if quick else APPROVALS
    http, here, spent = run_on("asyncio", decide, folder, count)
    last = int(len(http) * 0.99)
    more = http[last] - here[last]
    pairs = f"{http[last] * 1e3:.1f} ms, in the program {here[last] * 1e3:.1f} ms"
    middle = f"{http[len(http) // 2] * 1e3:.1f} ms, in the program {here[len(here) // 2] * 1e3:.1f} ms"
    rate = spent.transitions / (count * 3 * PAUSE)
    return [
        Figure("p99 of an approval over HTTP, beyond its commit", f"{more * 1e3:+.1f} ms", "50 ms", more <= 0.05),
        Figure(f"p99 under {rate:,.0f} transitions/s", pairs),
        Figure("the half of them within", middle),
    ]


ALL = {"task": task, "streams": streams, "approve": approve}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", choices=ALL)
    chosen = parser.parse_args()
    with on_disk() as folder:
        print(
            figures_table(
                [
                    one
                    for name, figures in ALL.items()
                    if chosen.only in {None, name}
                    for one in figures(folder, chosen.quick)
                ]
            )
        )


if __name__ == "__main__":
    main()
