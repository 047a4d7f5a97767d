"""A connection to a Ray cluster through a separate process: on a lost cluster, Ray ends that, not the program.

Rules:
- If a program has connected to Ray itself, its connection is used, in this process, and Ray ends the program when the
  head of its cluster is away for too long.
- Runtimes with the same settings share one process, which ends with the last of them, and with this process.
- Settings that cannot be pickled cannot be passed to another process: then this one connects.
- If the process ends without a request, all its actors count as ended, and Ray ends them: their Ray job has ended. The
  next `connect` starts another process.
- All methods may block: they are for Ray's thread (`cluster.py`). Those of actors, and observations, do not block.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import msgspec

from ...functions.main_program import search_path
from ...loaded_modules import imported
from ..process.process_pool import environment_of_ours
from ..workers.wire import Unpacker
from .cluster import Actor, Cluster, RayCluster, RayTrouble, RayUnavailable, Then, apart, check_installed

_CHUNK = 262_144
_LEAVING = 5.0  # seconds that the process has to end
_pack = msgspec.msgpack.Encoder().encode
_clients: dict[bytes, Client] = {}  # by their settings
_making = threading.Lock()


def framed(what: Any) -> bytes:  # Any: a tuple of plain values
    """The bytes of one message, in the form that `wire.Unpacker` takes."""
    body = _pack(what)
    return len(body).to_bytes(4, "little") + body


class Client:
    """The process, in the view of this one. `lost` are called, in a thread, with the reason, if it ends unrequested."""

    def __init__(self, settings: bytes) -> None:
        self.settings = settings
        self.users = 0
        self.broke: str | None = None
        self.lost: list[Callable[[str], None]] = []
        self._sending = threading.Lock()
        self._open: dict[int, Then] = {}
        self._number = 0
        ours, theirs = socket.socketpair()
        try:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-P", "-m", "callboard.runtime.engines.ray.client_process", str(theirs.fileno()),
                 str(os.getpid())],
                stdin=subprocess.DEVNULL, env=environment_of_ours({}), pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )  # fmt: skip
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        self._line = ours
        threading.Thread(target=self._read, name="callboard-ray-client", daemon=True).start()
        self._send((search_path(), list(sys.argv), settings))

    def tell(self, then: Then, verb: str, *args: Any) -> None:
        """Send a request; `then(value, trouble)` is called in a thread."""
        with self._sending:
            broke = self.broke
            self._number += 1
            number = self._number
            if broke is None:
                self._open[number] = then
        if broke is None:
            self._send((number, verb, args))
        else:
            then(None, RayTrouble("gone", broke))

    def ask(self, verb: str, *args: Any) -> Any:
        """Send a request, and wait for its result. Raises RayUnavailable, and RuntimeError for an error of Ray."""
        done = threading.Event()
        answer: list[tuple[Any, RayTrouble | None]] = []

        def then(value: Any, trouble: RayTrouble | None) -> None:
            answer.append((value, trouble))
            done.set()

        self.tell(then, verb, *args)
        done.wait()
        value, trouble = answer[0]
        if trouble is not None:
            raise (RuntimeError if trouble.kind == "raised" else RayUnavailable)(str(trouble))
        return value

    def close(self) -> None:
        """End the process: no runtime uses it any more."""
        self.lost.clear()
        with contextlib.suppress(OSError):
            self._line.shutdown(socket.SHUT_WR)
        try:
            self._process.wait(_LEAVING)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def _send(self, what: Any) -> None:
        with self._sending, contextlib.suppress(OSError):  # the process has ended, which is reported separately
            self._line.sendall(framed(what))

    def _read(self) -> None:
        unpacker, decode = Unpacker(), msgspec.msgpack.Decoder().decode
        while data := self._received():
            for body in unpacker.feed(data):
                number, value, kind, text = decode(body)
                then = self._open.pop(number, None)
                if then is not None:
                    then(value, None if kind is None else RayTrouble(kind, text))
        self._ended()

    def _received(self) -> bytes:
        try:
            return self._line.recv(_CHUNK)
        except OSError:
            return b""

    def _ended(self) -> None:
        code = self._process.wait()
        how = f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        with self._sending:
            self.broke = f"Ray has given its cluster up: the process that was connected {how}"
            waiting, self._open = self._open, {}
        self._line.close()
        for then in waiting.values():
            then(None, RayTrouble("gone", self.broke))
        for lost in list(self.lost):
            lost(self.broke)


class ActorProxy(Actor):
    """An actor that the separate process has created."""

    def __init__(self, client: Client, number: int) -> None:
        self._client = client
        self._of = number

    def push(self, number: int, data: bytes, then: Then) -> None:
        """Send it a batch of frames."""
        self._client.tell(then, "push", self._of, number, data)

    def poll(self, after: int, patience: float, then: Then) -> None:
        """Request its next batch."""
        self._client.tell(then, "poll", self._of, after, patience)

    def probe(self, then: Then) -> None:
        """Ask for the tokens of its running calls."""
        self._client.tell(then, "probe", self._of)

    def kill(self) -> None:
        """Kill it at once. May block."""
        self._client.ask("kill", self._of)


class Connection:
    """A connection to a cluster, which may be lost and made again: `lost(reason)` is called then, in a thread, and
    `lost(None)` when it is back. The methods are those of `cluster.Cluster`.
    """

    def __init__(self, settings: RayCluster, journal: str | None) -> None:
        self.lost: Callable[[str | None], None] = lambda _: None
        self._settings = settings
        self._journal = journal
        self._here: Cluster | None = None
        self._client: Client | None = None
        self._away = False

    def connect(self) -> None:
        """Connect, and end the actors left by a killed runtime of the same journal. Raises RayUnavailable."""
        if self._here is None and self._client is None and (self._taken() or self._bytes() is None):
            self._here = Cluster(self._settings, self._journal)
        if self._here is not None:
            self._here.connect()
            return
        if self._client is not None and self._client.broke is None:
            return
        check_installed()
        client = _client_of(cast("bytes", self._bytes()))
        try:
            client.ask("connect", self._journal)
        except BaseException:
            _release(client)
            raise
        self._client = client
        client.lost.append(self._was_lost)
        if self._away:
            self._away = False
            self.lost(None)

    def disconnect(self) -> None:
        """Close the connection, if it was made here and no other runtime uses it."""
        if self._here is not None:
            self._here.disconnect()
        client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(ValueError):
                client.lost.remove(self._was_lost)
            _release(client)

    def unfit(self, resources: Mapping[str, float], labels: Mapping[str, str]) -> str | None:
        """Why no node could ever hold such an actor; None if one could."""
        if self._here is not None:
            return self._here.unfit(resources, labels)
        return cast("str | None", self._there().ask("unfit", dict(resources), dict(labels)))

    def look(self, node: str, those: Sequence[tuple[int, str]], then: Then) -> None:
        """Find out whether the processes of one node's actors that do not answer work (`Cluster.look`)."""
        if self._here is not None:
            apart(partial(self._here.look, node, those), then)
        elif (client := self._client) is not None:
            client.tell(then, "look", node, those)
        else:
            then(None, RayTrouble("gone", "it is not connected to the Ray cluster"))

    def sizes(self) -> list[int]:
        """The number of processors of each node, once connected. Raises RayUnavailable."""
        self.connect()
        return self._here.sizes() if self._here is not None else cast("list[int]", self._there().ask("sizes"))

    def start(self, name: str, welcome: bytes, resources: Mapping[str, float], labels: Mapping[str, str]) -> Actor:
        """Create an actor."""
        if self._here is not None:
            return self._here.start(name, welcome, resources, labels)
        client = self._there()
        number = client.ask("start", self._journal, name, welcome, dict(resources), dict(labels))
        return ActorProxy(client, number)

    def _there(self) -> Client:
        if self._client is None:
            raise RayUnavailable("it is not connected to the Ray cluster")
        return self._client

    def _was_lost(self, reason: str) -> None:
        self._away = True
        self.lost(reason)

    def _bytes(self) -> bytes | None:
        try:
            return pickle.dumps(self._settings)
        except Exception:  # the application's settings may raise anything
            return None

    @staticmethod
    def _taken() -> bool:
        """Whether the program has connected to Ray itself."""
        ray = imported("ray")
        return ray is not None and bool(ray.is_initialized())


def _client_of(settings: bytes) -> Client:
    with _making:
        client = _clients.get(settings)
        if client is None or client.broke is not None:
            client = _clients[settings] = Client(settings)
        client.users += 1
        return client


def _release(client: Client) -> None:
    with _making:
        client.users -= 1
        if client.users:
            return
        if _clients.get(client.settings) is client:
            del _clients[client.settings]
    client.close()
