"""The actor engine's figures, each beside its comparison, from one run.

    python benchmarks/engine.py [--quick] [--only NAME]

Prints a markdown table. Machines are shared and differ, so only the ratios count. Every figure is the best of several
rounds. Lower bounds: a method call, a bare deque, a bare asyncio.Queue between two tasks; comparison: Pykka (threads).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
import tracemalloc
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

import anyio

try:
    import pykka
except ImportError:  # a peer, and not a dependency
    pykka = None

from callboard.actors.users.actor import Actor, Context
from callboard.actors.users.ref import Ref
from callboard.runtime.dispatch.dispatcher import Dispatcher
from callboard.runtime.dispatch.timers import Timers

ROUNDS = [60]  # many short rounds: some of them run while the machine has no other work


class Counter(Actor):
    """Counts its messages."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def receive(self, message: Any, ctx: Context) -> int:
        self.count += 1
        return self.count


class Sink(Actor):
    """Does nothing with a message, like the other end of the bare queue."""

    __slots__ = ()

    def receive(self, message: Any, ctx: Context) -> None:
        pass


class Link(Actor):
    """Passes a number on, reduced by one."""

    __slots__ = ("next",)
    next: Ref[Any, Any]

    def receive(self, message: Any, ctx: Context) -> None:
        if type(message) is int:
            if message:
                self.next.tell(message - 1)
        else:
            self.next = message


class Asker(Actor):
    """Sends a request and waits for its answer as a message, repeatedly."""

    __slots__ = ("left", "other")

    def receive(self, message: Any, ctx: Context) -> None:
        if type(message) is tuple:
            self.other, self.left = message
        if self.left:
            self.left -= 1
            self.other.tell(ctx.self)


class Answerer(Actor):
    """Answers at once."""

    __slots__ = ()

    def receive(self, message: Any, ctx: Context) -> None:
        message.tell(None)


class Slow(Actor):
    """A coroutine receive that does not wait."""

    __slots__ = ()

    async def receive(self, message: Any, ctx: Context) -> Any:
        return message


def rate(n: int, run: Callable[[], object]) -> float:
    """The number per second, the best of several rounds."""
    best = 0.0
    for _ in range(ROUNDS[0]):
        start = time.perf_counter()
        run()
        best = max(best, n / (time.perf_counter() - start))
    return best


async def rate_async(n: int, run: Callable[[], Awaitable[object]]) -> float:
    """The same for coroutine functions."""
    best = 0.0
    for _ in range(ROUNDS[0]):
        start = time.perf_counter()
        await run()
        best = max(best, n / (time.perf_counter() - start))
    return best


# -- floors and peers --------------------------------------------------------------------------------------------------


def method_call(n: int) -> float:
    counter = Counter()

    def run() -> None:
        for _ in range(n):
            counter.receive(None, None)  # type: ignore[arg-type]

    return rate(n, run)


def bare_deque(n: int) -> float:
    queue: deque[int] = deque()

    def run() -> None:
        for i in range(n):
            queue.append(i)
            queue.popleft()

    return rate(n, run)


async def _queue_hops(n: int, burst: int) -> float:
    there: asyncio.Queue[int] = asyncio.Queue()
    back: asyncio.Queue[int] = asyncio.Queue()

    async def consume() -> None:
        while True:
            for _ in range(burst):
                await there.get()
            back.put_nowait(1)

    consumer = asyncio.create_task(consume())

    async def run() -> None:
        for _ in range(n // burst):
            for i in range(burst):
                there.put_nowait(i)
            await back.get()

    best = await rate_async(n, run)
    consumer.cancel()
    return best


def queue_burst(n: int) -> float:
    return asyncio.run(_queue_hops(n, 64))


def queue_one_by_one(n: int) -> float:
    return asyncio.run(_queue_hops(n, 1))


def pykka_tells(n: int) -> float:
    if pykka is None:
        return 0.0

    class Peer(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> Any:
            return message

    ref = Peer.start()

    def run() -> None:
        for i in range(n):
            ref.tell(i)
        ref.ask(0)

    best = rate(n, run)
    ref.stop()
    return best


def pykka_asks(n: int) -> float:
    if pykka is None:
        return 0.0

    class Peer(pykka.ThreadingActor):
        def on_receive(self, message: Any) -> Any:
            return message

    ref = Peer.start()
    best = rate(n, lambda: [ref.ask(i, timeout=5) for i in range(n)])
    ref.stop()
    return best


# -- ours --------------------------------------------------------------------------------------------------------------


def _on_loop(backend: str, n: int, scenario: Callable[[Dispatcher], Callable[[], Awaitable[object]]]) -> float:
    """Run a scenario beside a dispatcher that runs on the event loop."""

    async def main() -> float:
        dispatcher = Dispatcher()
        async with anyio.create_task_group() as group:
            group.start_soon(dispatcher.run)
            best = await rate_async(n, scenario(dispatcher))
            dispatcher.close()
        return best

    options = {"use_uvloop": True} if backend == "uvloop" else {}
    return anyio.run(main, backend="asyncio" if backend == "uvloop" else backend, backend_options=options)


def tells(n: int, backend: str = "asyncio", kind: type[Actor] = Sink) -> float:
    """The same messages as those of the queue, in the same loop; but all are sent before one is handled."""

    def scenario(dispatcher: Dispatcher) -> Callable[[], Awaitable[object]]:
        ref = dispatcher.spawn(kind, mailbox=n + 1)

        async def run() -> None:
            tell = ref.tell
            for _ in range(n // 64):
                for i in range(64):
                    tell(i)
            await ref.ask(None)

        return run

    return _on_loop(backend, n, scenario)


def tells_burst(n: int) -> float:
    """64 tells, then an answer: the same exchange as the queue's burst."""

    def scenario(dispatcher: Dispatcher) -> Callable[[], Awaitable[object]]:
        ref = dispatcher.spawn(Counter)

        async def run() -> None:
            tell = ref.tell
            for _ in range(n // 64):
                for i in range(63):
                    tell(i)
                await ref.ask(None)

        return run

    return _on_loop("asyncio", n, scenario)


def fan_out(n: int, actors: int) -> float:
    def scenario(dispatcher: Dispatcher) -> Callable[[], Awaitable[object]]:
        refs = [dispatcher.spawn(Counter) for _ in range(actors)]

        async def run() -> None:
            for _ in range(n // actors):
                for ref in refs:
                    ref.tell(1)
                await refs[-1].ask(None)

        return run

    return _on_loop("asyncio", n, scenario)


def ring(n: int) -> float:
    dispatcher = Dispatcher()
    refs = [dispatcher.spawn(Link) for _ in range(1_000)]
    for i, ref in enumerate(refs):
        ref.tell(refs[i - 1])
    dispatcher.run_until_idle()

    def run() -> None:
        refs[0].tell(n)
        dispatcher.run_until_idle()

    return rate(n, run)


def pairs(n: int) -> float:
    """Requests and replies between two actors, each a message."""
    dispatcher = Dispatcher()
    asker, answerer = dispatcher.spawn(Asker), dispatcher.spawn(Answerer)

    def run() -> None:
        asker.tell((answerer, n))
        dispatcher.run_until_idle()

    return rate(n, run)


def system_tells(n: int) -> float:
    dispatcher = Dispatcher()
    count = [0]

    def receive(message: Any) -> None:
        count[0] += 1

    ref = dispatcher.spawn_system(receive, "kernel")

    def run() -> None:
        for i in range(n):
            ref.tell(i)
        dispatcher.run_until_idle()

    return rate(n, run)


def asks(n: int, backend: str = "asyncio") -> float:
    """Asks from a task, with a timeout, one after the other."""

    def scenario(dispatcher: Dispatcher) -> Callable[[], Awaitable[object]]:
        ref = dispatcher.spawn(Counter)

        async def run() -> None:
            for _ in range(n):
                await ref.ask(None, timeout=5)

        return run

    return _on_loop(backend, n, scenario)


def asks_at_once(n: int, backend: str = "asyncio") -> float:
    """Asks from 100 tasks at the same time."""

    def scenario(dispatcher: Dispatcher) -> Callable[[], Awaitable[object]]:
        ref = dispatcher.spawn(Counter)

        async def ask() -> None:
            for _ in range(n // 100):
                await ref.ask(None, timeout=5)

        async def run() -> None:
            async with anyio.create_task_group() as group:
                for _ in range(100):
                    group.start_soon(ask)

        return run

    return _on_loop(backend, n, scenario)


def coroutine_receives(n: int) -> float:
    """Messages to 100 actors whose receive is a coroutine function."""

    def scenario(dispatcher: Dispatcher) -> Callable[[], Awaitable[object]]:
        refs = [dispatcher.spawn(Slow) for _ in range(100)]

        async def run() -> None:
            for _ in range(n // 100):
                for ref in refs:
                    ref.tell(1)
            for ref in refs:
                await ref.ask(1)

        return run

    return _on_loop("asyncio", n, scenario)


def spawns(n: int) -> float:
    best = 0.0
    for _ in range(ROUNDS[0]):
        dispatcher = Dispatcher()
        start = time.perf_counter()
        for _ in range(n):
            dispatcher.spawn(Counter)
        best = max(best, n / (time.perf_counter() - start))
        dispatcher.close()
    return best


def arming(n: int) -> float:
    """Timers that are armed and cancelled."""

    def run() -> None:
        timers = Timers()
        armed = [timers.arm(float(i), print) for i in range(n)]
        for timer in armed:
            timers.cancel(timer)

    return rate(n, run)


def bytes_per_actor(n: int) -> float:
    """Bytes of an actor that has handled a message, with its state and its entry in the registry."""
    dispatcher = Dispatcher()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for _ in range(n):
        dispatcher.spawn(Counter).tell(None)
    dispatcher.run_until_idle()
    gc.collect()
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    dispatcher.close()
    return used / n


def resident_bytes_per_actor(n: int) -> float:
    """The same by the operating system, with all actors alive at the same time."""
    dispatcher = Dispatcher()
    gc.collect()
    before = _resident()
    refs: list[Ref] = []
    for _ in range(n):
        dispatcher.spawn(Counter).tell(None)
    dispatcher.run_until_idle()
    used = _resident() - before
    dispatcher.close()
    del refs
    return used / n


def _resident() -> int:
    pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    return int(pages) * 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds, fewer actors")
    parser.add_argument("--only", default="", help="only figures whose name contains this")
    options = parser.parse_args()
    n = 16_000  # whole bursts, whole rounds of every fan-out
    if options.quick:
        ROUNDS[0] = 3
    rows: list[tuple[str, Callable[[], float]]] = [
        ("method call (floor)", lambda: method_call(n)),
        ("deque append + popleft (floor)", lambda: bare_deque(n)),
        ("asyncio.Queue, bursts of 64", lambda: queue_burst(n)),
        ("asyncio.Queue, one at a time", lambda: queue_one_by_one(n // 10)),
        ("Pykka tells", lambda: pykka_tells(n)),
        ("Pykka asks", lambda: pykka_asks(n // 20)),
        ("tells to one actor that does nothing", lambda: tells(n)),
        ("tells to one actor that counts and answers", lambda: tells(n, kind=Counter)),
        ("tells to one actor that does nothing, uvloop", lambda: tells(n, "uvloop")),
        ("tells to one actor that does nothing, trio", lambda: tells(n, "trio")),
        ("tells in bursts of 64", lambda: tells_burst(n)),
        ("fan-out over 1,000", lambda: fan_out(n, 1_000)),
        ("fan-out over 100,000", lambda: fan_out(max(n, 100_000), 100_000)),
        ("ring of 1,000, hops", lambda: ring(n)),
        ("request and reply between actors", lambda: pairs(n)),
        ("tells to a system cell", lambda: system_tells(n)),
        ("asks from a task, with timeout", lambda: asks(n // 10)),
        ("asks from a task, uvloop", lambda: asks(n // 10, "uvloop")),
        ("asks from a task, trio", lambda: asks(n // 10, "trio")),
        ("asks from 100 tasks", lambda: asks_at_once(n // 10)),
        ("coroutine receives", lambda: coroutine_receives(n // 10)),
        ("spawns", lambda: spawns(n)),
        ("timers armed and called off", lambda: arming(n)),
    ]
    measured: dict[str, float] = {}
    print("| figure | per second | x Queue in bursts | x Pykka tells |")
    print("| --- | ---: | ---: | ---: |")
    for name, run in rows:
        if options.only in name or name.startswith(("asyncio.Queue, b", "Pykka t")):
            measured[name] = run()
            against = [measured.get("asyncio.Queue, bursts of 64"), measured.get("Pykka tells")]
            ratios = [f"{measured[name] / other:.2f}" if other else "" for other in against]
            print(f"| {name} | {measured[name]:,.0f} | {' | '.join(ratios)} |", flush=True)
    if not options.only:
        many = 100_000 if options.quick else 1_000_000
        print(f"\nBytes per idle actor: {bytes_per_actor(100_000):.0f} (allocated), ", end="")
        print(f"{resident_bytes_per_actor(many):.0f} (resident, {many:,} alive at once)")


if __name__ == "__main__":
    main()
