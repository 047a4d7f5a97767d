"""The process that is connected to a Ray cluster: `python -m callboard.runtime.engines.ray.client_process SOCKET
PARENT`.

Rules:
- It executes the requests of `connection.py`, and knows nothing else: it identifies clusters by their journals, actors
  by numbers. Requests that may block run in Ray's thread, in order; calls and observations of actors do not wait for
  them.
- It ends when its parent does, and when its parent has closed the socket: Ray ends its actors then.
"""

from __future__ import annotations

import contextlib
import pickle
import socket
import sys
import threading
from functools import partial
from typing import Any

import msgspec

from ..process.child import be_a_child
from ..workers.wire import Unpacker
from .cluster import Actor, Cluster, RayCluster, RayTrouble, RayUnavailable, apart, ray_thread
from .connection import framed

_CHUNK = 262_144


class RayChild:
    """The process, with its cluster and actors."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._sending = threading.Lock()
        self._settings = RayCluster()
        self._clusters: dict[str | None, Cluster] = {}
        self._actors: dict[int, Actor] = {}

    def run(self) -> None:
        """Execute requests until the socket is closed."""
        unpacker, decode, first = Unpacker(), msgspec.msgpack.Decoder().decode, True
        while data := self._received():
            for body in unpacker.feed(data):
                if first:
                    first = False
                    sys.path[:], sys.argv[:], settings = decode(body)
                    self._settings = pickle.loads(settings)  # noqa: S301 - from its own parent
                else:
                    self._take(*decode(body))
        over = threading.Event()
        ray_thread().do(self._disconnect, lambda _value, _error: over.set())
        over.wait()

    def _received(self) -> bytes:
        try:
            return self._line.recv(_CHUNK)
        except OSError:
            return b""

    def _take(self, number: int, verb: str, args: list[Any]) -> None:
        if verb in {"push", "poll", "probe"}:
            of, *rest = args
            then = partial(self._told, number)
            try:
                getattr(self._actors[of], verb)(*rest, then)
            except Exception as error:  # Ray may raise anything if it has lost its cluster
                then(None, RayTrouble("raised", f"{type(error).__name__}: {error}"))
        elif verb == "look":
            apart(lambda: self._any().look(*args), partial(self._told, number))
        else:
            ray_thread().do(partial(getattr(self, f"_{verb}"), *args), partial(self._done, number))

    def _told(self, number: int, value: Any, trouble: RayTrouble | None) -> None:
        self._answer(number, value, None if trouble is None else trouble.kind, str(trouble or ""))

    def _done(self, number: int, value: Any, error: Exception | None) -> None:
        kind = None if error is None else "gone" if isinstance(error, RayUnavailable) else "raised"
        text = str(error) if isinstance(error, RayUnavailable) else f"{type(error).__name__}: {error}"
        self._answer(number, value, kind, "" if error is None else text)

    def _answer(self, *what: Any) -> None:
        with self._sending, contextlib.suppress(OSError):
            self._line.sendall(framed(what))

    # -- requests that may block, in Ray's thread ----------------------------------------------------------------------

    def _connect(self, journal: str | None) -> None:
        self._clusters.setdefault(journal, Cluster(self._settings, journal)).connect()

    def _unfit(self, resources: dict[str, float], labels: dict[str, str]) -> str | None:
        return self._any().unfit(resources, labels)

    def _sizes(self) -> list[int]:
        return self._any().sizes()

    def _start(
        self, journal: str | None, name: str, welcome: bytes, resources: dict[str, float], labels: dict[str, str]
    ) -> int:
        number = len(self._actors)
        self._actors[number] = self._clusters[journal].start(name, welcome, resources, labels)
        return number

    def _kill(self, number: int) -> None:
        self._actors[number].kill()

    def _disconnect(self) -> None:
        for cluster in self._clusters.values():
            cluster.disconnect()

    def _any(self) -> Cluster:
        return next(iter(self._clusters.values()))


if __name__ == "__main__":
    RayChild(be_a_child()).run()
