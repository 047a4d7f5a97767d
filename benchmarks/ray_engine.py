"""The cost of the Ray engine, compared with a bare call of a Ray actor, with a thousand calls outstanding.

    python benchmarks/ray_engine.py [--rounds N]

The bare call is `actor.method.remote()` of an async actor that returns at once, a thousand at a time; and a plain
method of an actor without an event loop. The engine has one worker, and runs a thousand no-op async bodies at a time,
measured from `start` to the outcome on the event loop. The ratio is the engine's time divided by the bare async call's
time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from typing import Any

import anyio

from callboard.runtime.calling import Outcome
from callboard.runtime.engines.contract import Call, ProcessCall
from callboard.runtime.engines.ray.engine import RayEngine

OUTSTANDING = 1_000


async def nothing() -> None:
    """The body."""


class Bare:
    """The actor of the bare calls."""

    async def call(self) -> None:
        """Return at once."""


class Plain:
    """The same without an event loop."""

    def call(self) -> None:
        """Return at once."""


def bare(ray: Any, kind: type, rounds: int, **options: Any) -> list[float]:
    """Seconds for each round of a thousand bare calls, without the first round."""
    made = ray.remote(max_restarts=0, max_task_retries=0, num_cpus=0, **options)(kind)
    actor = made.remote()
    ray.get(actor.call.remote())
    took: list[float] = []
    for _ in range(rounds + 1):
        began = time.perf_counter()
        ray.get([actor.call.remote() for _ in range(OUTSTANDING)])
        took.append(time.perf_counter() - began)
    ray.kill(actor)
    return took[1:]


async def ours(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds for each round of a thousand bodies, and for single ones, one after another."""
    engine = RayEngine()
    await engine.open()
    left, token, done = 0, 0, anyio.Event()

    def ended(outcome: Outcome) -> None:
        nonlocal left
        assert outcome.status == "ok", outcome
        left -= 1
        if not left:
            done.set()

    def beat(token: int, details: object) -> None: ...

    async def several(count: int) -> float:
        nonlocal left, token, done
        left, done = count, anyio.Event()
        began = time.perf_counter()
        for _ in range(count):
            token += 1
            what = ProcessCall(function="benchmarks.ray_engine:nothing", worker="w", incarnation=1, on_loop=True)
            engine.start(Call(token=token, process=what), ended, beat)
        await done.wait()
        return time.perf_counter() - began

    try:
        await several(1)
        took = [await several(OUTSTANDING) for _ in range(rounds + 1)][1:]
        single = [await several(1) for _ in range(200)]
    finally:
        await engine.close(5)
    return took, single


def measure(rounds: int = 5) -> dict[str, float]:
    """The figures: calls per second of each, and the ratio; milliseconds of a single body.

    Uses the connected Ray cluster, or starts a cluster.
    """
    import ray as found  # noqa: PLC0415 - who only reads the figures of others has none

    ray: Any = found
    own = not ray.is_initialized()
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        if own:
            os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
            ray.init(
                address="local", num_cpus=2, object_store_memory=80_000_000, include_dashboard=False,
                log_to_driver=False, configure_logging=False, _temp_dir=folder,
            )  # fmt: skip
        try:
            plain = bare(ray, Plain, rounds)
            called = bare(ray, Bare, rounds, max_concurrency=OUTSTANDING)
            took, single = anyio.run(ours, rounds)
        finally:
            if own:
                ray.shutdown()
    rate = {"async": statistics.median(called), "plain": statistics.median(plain), "ours": statistics.median(took)}
    return {
        "bare async calls/s": OUTSTANDING / rate["async"],
        "bare plain calls/s": OUTSTANDING / rate["plain"],
        "bodies/s": OUTSTANDING / rate["ours"],
        "ours over bare": rate["ours"] / rate["async"],
        "ours over bare plain": rate["ours"] / rate["plain"],
        "single body p50 ms": statistics.median(single) * 1e3,
    }


def main() -> None:
    """Print the figures."""
    arguments = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    arguments.add_argument("--rounds", type=int, default=5, help="rounds of a thousand calls")
    for name, figure in measure(arguments.parse_args().rounds).items():
        print(f"{name:24}{figure:12,.2f}")


if __name__ == "__main__":
    main()
