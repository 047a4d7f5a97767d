"""An engine that is made with its first call: to import one takes time and memory, and many runtimes use few of them.

Until then it only notes its workers: none has run anything that would have to be stopped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..calling import Ended
from .base import BaseEngine
from .contract import Beat, Call


class LateEngine:
    """Stands for the engine of that name, which `make` makes. It is an engine by the contract."""

    def __init__(self, name: str, make: Callable[[], BaseEngine[Any]]) -> None:
        self.name = name
        self._make = make
        self._engine: BaseEngine[Any] | None = None
        self._is_open = False
        self._workers: dict[str, int] = {}  # their latest incarnations, until the engine is made

    async def open(self) -> None:
        """Accept calls from now on."""
        self._is_open = True

    def start(self, call: Call, ended: Ended, beat: Beat) -> None:
        """Run the call. Raises what the engine raises, and OSError or MemoryError if it cannot be imported now."""
        if self._engine is None:
            engine = self._make()
            if self._is_open:
                engine.begin()
            for worker, incarnation in self._workers.items():
                engine.start_worker(worker, incarnation)
            self._engine = engine
        self._engine.start(call, ended, beat)

    def stop(self, token: int, *, force: bool = False) -> bool:
        """Ask the call to end; False if the call is over or unknown."""
        return self._engine is not None and self._engine.stop(token, force=force)

    def tail(self, token: int) -> str:
        """The last line that the call has printed; "" if it is over or printed nothing."""
        return "" if self._engine is None else self._engine.tail(token)

    def probe(self, worker: str, incarnation: int) -> tuple[int, ...] | None:
        """Probe a worker. One that has never run anything counts as alive."""
        return () if self._engine is None else self._engine.probe(worker, incarnation)

    def start_worker(self, worker: str, incarnation: int) -> None:
        """Register a new incarnation of a worker."""
        if self._engine is None:
            self._workers[worker] = max(incarnation, self._workers.get(worker, incarnation))
        else:
            self._engine.start_worker(worker, incarnation)

    def stop_worker(self, worker: str, incarnation: int, deadline: float) -> None:
        """Let a worker end after its running calls."""
        if self._engine is not None:
            self._engine.stop_worker(worker, incarnation, deadline)

    def kill_worker(self, worker: str, incarnation: int) -> None:
        """Kill a worker; its running calls end as lost."""
        if self._engine is not None:
            self._engine.kill_worker(worker, incarnation)

    def forget_worker(self, worker: str) -> None:
        """Drop all data about a worker that ended long ago."""
        self._workers.pop(worker, None)
        if self._engine is not None:
            self._engine.forget_worker(worker)

    def release(self) -> None:
        """Release idle resources that were kept for later."""
        if self._engine is not None:
            self._engine.release()

    async def close(self, deadline: float) -> None:
        """Stop all calls, and refuse new ones."""
        self._is_open = False
        if self._engine is not None:
            await self._engine.close(deadline)
