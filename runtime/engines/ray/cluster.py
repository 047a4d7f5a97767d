"""All use of Ray's own interface: connection, actors, nodes. The only module that imports `ray`.

Rules:
- `ray` is imported when a cluster is first needed, never before.
- Ray starts the processes of a local cluster so that they end with the thread which started them, and its calls may
  block. So one thread, which lives as long as this process, does everything except calls of actors, and observations
  of actors, which take long and have a thread each.
- A connection that the application has made is used, and not changed. A connection made here is closed with the last
  runtime that uses it. Ray may configure no logging, and handle no signals.
- Ray's interface has no types: its values are `Any` here, and typed where they leave this module.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future
from hashlib import blake2b
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, cast

import msgspec

from ....machines.keywords import KeywordsChecked
from ...extras import missing
from ...loaded_modules import imported
from ...processes.os_processes import ProcessSample

NAMESPACE = "callboard"
"""Ray's namespace for our actors."""
_GROUPS = {"push": 1, "poll": 1, "probe": 1}  # number of the actor's threads for each method
_OWN_OPTIONS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
_UNWANTED = ("SIGTERM handler is not set", "Token authentication is enabled")
_CAUSE = 600  # characters
_ANSWER = 5.0  # seconds within which the head of a cluster must be reached
_LOOKING = 10.0  # seconds that an observation of a node's actors may take
_LOOK = 0.5  # seconds for which they are observed
_SIGACTION = 512  # bytes, more than this struct has on any system
_SIGNALS = (
    signal.SIGTERM, signal.SIGINT, signal.SIGABRT, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV,
    *(getattr(signal, name) for name in ("SIGBUS", "SIGTRAP") if hasattr(signal, name)),
)  # fmt: skip

Then = Callable[[Any, "RayTrouble | None"], None]
"""Called with the result of a call: its value, or the trouble. In a thread of Ray's."""


class RayCluster(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, metaclass=KeywordsChecked):
    """The Ray cluster of the workers of the engine "ray", and what they need there.

    address: that of its head ("HOST:PORT"), "auto" for this machine's cluster, "local" for a cluster that is started
    here and ends with the runtime; None: Ray's default (`RAY_ADDRESS`, a cluster on this machine, or a new one).
    runtime_env: Ray's, for the actors: what their nodes have to install and where code lies. options: more arguments of
    `ray.init`. If the program has already connected to Ray, that connection is used as it is.
    """

    address: str | None = None
    runtime_env: dict[str, Any] = {}
    options: dict[str, Any] = {}


class RayUnavailable(RuntimeError):  # noqa: N818 - it names the problem
    """Ray is not installed, or its cluster cannot be reached. The text says what to do."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class RayTrouble(Exception):  # noqa: N818 - it is passed on, not raised
    """Why a call of an actor has no value. kind: the actor has ended, it cannot be reached now, or it raised."""

    def __init__(self, kind: Literal["gone", "away", "raised"], text: str) -> None:
        super().__init__(text)
        self.kind = kind


class RayThread:
    """The thread for calls that may block."""

    def __init__(self) -> None:
        self._todo: SimpleQueue[Callable[[], None]] = SimpleQueue()
        threading.Thread(target=self._run, name="callboard-ray-calls", daemon=True).start()

    def do(self, func: Callable[[], Any], then: Callable[[Any, Exception | None], None]) -> None:
        """Call `func()` in the thread, after earlier calls; then `then(value, error)`, also there."""
        self._todo.put(lambda: _done(func, then))

    def _run(self) -> None:
        while True:
            self._todo.get()()


def _done(func: Callable[[], Any], then: Callable[[Any, Exception | None], None]) -> None:
    try:
        value = func()
    except Exception as error:
        then(None, error)
    else:
        then(value, None)


_threads: list[RayThread] = []
_users = 0  # runtimes that use the connection made here
_making = threading.Lock()


def ray_thread() -> RayThread:
    """The only such thread; created at the first call."""
    with _making:
        if not _threads:
            _threads.append(RayThread())
        return _threads[0]


def apart(func: Callable[[], Any], then: Then) -> None:
    """Call `func()` in its own thread; then `then(value, trouble)`, also there, or here if no thread can be started."""

    def run() -> None:
        try:
            value = func()
        except Exception as error:  # Ray may raise anything
            then(None, RayTrouble("raised", f"{type(error).__name__}: {error}"))
        else:
            then(value, None)

    try:
        threading.Thread(target=run, name="callboard-ray-look", daemon=True).start()
    except RuntimeError as error:
        then(None, RayTrouble("raised", str(error)))


def check_installed() -> None:
    """Raise RayUnavailable if Ray is not installed."""
    from importlib.util import find_spec  # noqa: PLC0415 - needed only here

    if find_spec("ray") is None:
        raise RayUnavailable(missing('a worker of the engine "ray"', "ray"))


class Actor:
    """An actor of ours, running or being created."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._calls = {name: getattr(actor, name).options(concurrency_group=name) for name in _GROUPS}

    def push(self, number: int, data: bytes, then: Then) -> None:
        """Send it a batch of frames."""
        self._call("push", then, number, data)

    def poll(self, after: int, patience: float, then: Then) -> None:
        """Request its next batch."""
        self._call("poll", then, after, patience)

    def probe(self, then: Then) -> None:
        """Ask for the tokens of its running calls."""
        self._call("probe", then)

    def kill(self) -> None:
        """Kill it at once. May block."""
        _ray().kill(self._actor, no_restart=True)

    def _call(self, name: str, then: Then, *args: Any) -> None:
        future: Future[Any] = self._calls[name].remote(*args).future()
        future.add_done_callback(lambda done: _tell(done, then))


class Cluster:
    """A connection to a cluster. All its methods may block: they are for Ray's thread."""

    def __init__(self, settings: RayCluster, journal: str | None) -> None:
        self._settings = settings
        self._mark = None if journal is None else blake2b(journal.encode(), digest_size=8).hexdigest()
        self._connected = False
        self._ours = False
        self._count = 0

    def connect(self) -> None:
        """Connect, and end the actors left by a killed runtime of the same journal. Raises RayUnavailable."""
        global _users  # noqa: PLW0603 - Ray has one connection in a process
        if self._connected:
            return
        check_installed()
        ray = _ray()
        if not ray.is_initialized():
            self._init(ray)
            self._ours = True
        elif _users:
            self._ours = True
        _users += self._ours
        self._connected = True
        if self._mark is not None:
            _end_actors(f"{self._mark}:")

    def _init(self, ray: Any) -> None:
        settings = self._settings
        address = settings.address
        if address is not None and "://" in address:
            raise RayUnavailable(
                f"{address!r} is the address of a Ray client, by which actors cannot be watched: give the address of "
                'the cluster\'s head ("HOST:PORT"), or "auto" on one of its machines'
            )
        if address is not None and ":" in address:
            _check_answers(address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {
            "namespace": NAMESPACE, "log_to_driver": False, "configure_logging": False, **settings.options
        }  # fmt: skip
        if address in (None, "local"):
            options.setdefault("include_dashboard", False)
        try:
            with _without_advice(), _signals_kept():
                ray.init(address=address, **options)
        except Exception as error:  # any part of Ray may fail
            where = "a Ray cluster cannot be started here" if address == "local" else f"no Ray cluster at {address!r}"
            where = "there is no Ray cluster, and none can be started here" if address is None else where
            raise RayUnavailable(f"{where}: {type(error).__name__}: {error}") from error
        _print_messages(bool(options["log_to_driver"]))

    def disconnect(self) -> None:
        """Close the connection, if it was made here and no other runtime uses it."""
        global _users  # noqa: PLW0603 - as above
        if self._connected and self._ours:
            _users -= 1
            if not _users:
                _ray().shutdown()
                _print_messages(True)
        self._connected = False

    def unfit(self, resources: Mapping[str, float], labels: Mapping[str, str]) -> str | None:
        """Why no node could ever hold such an actor; None if one could."""
        nodes = self._nodes()
        for node in nodes:
            has = cast("dict[str, float]", node["Resources"])
            called = cast("dict[str, str]", node.get("Labels") or {})
            if all(has.get(name, 0) >= amount for name, amount in resources.items() if amount) and all(
                called.get(name) == value for name, value in labels.items()
            ):
                return None
        wanted = [f"{name} {amount:g}" for name, amount in resources.items()]
        wanted += [f"{name}={value}" for name, value in labels.items()]
        return f"no node of the Ray cluster ({len(nodes)} alive) has {' and '.join(wanted) or 'anything'}"

    def sizes(self) -> list[int]:
        """The number of processors of each node, once connected. Raises RayUnavailable."""
        self.connect()
        return [int(node["Resources"].get("CPU", 0)) for node in self._nodes()]

    @staticmethod
    def _nodes() -> list[dict[str, Any]]:
        return [node for node in cast("list[dict[str, Any]]", _ray().nodes()) if node["Alive"]]

    def look(self, node: str, those: Sequence[tuple[int, str]]) -> list[bool]:
        """Whether the processes of actors that do not answer work: a Ray task on their node observes them together, and
        tells their wardens that their runtime is alive. False also if they cannot be observed.

        those: the process id and folder of each. Call it in its own thread.
        """
        nobody = [False] * len(those)
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy  # noqa: PLC0415

        if not any(one["NodeID"] == node for one in self._nodes()):
            return nobody
        ray = _ray()
        there = NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        looker = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(look_beside)
        with contextlib.suppress(ray.exceptions.RayError):
            return [bool(one) for one in ray.get(looker.remote([*those]), timeout=_LOOKING)]
        return nobody

    def start(self, name: str, welcome: bytes, resources: Mapping[str, float], labels: Mapping[str, str]) -> Actor:
        """Create an actor. Ray does not restart it, nor does it repeat any call."""
        self._count += 1
        options: dict[str, Any] = {
            "num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": "SPREAD"
        }  # fmt: skip
        more = dict(resources)
        for resource, option in _OWN_OPTIONS.items():
            if resource in more:
                options[option] = more.pop(resource)
        if more:
            options["resources"] = more
        if labels:
            options["label_selector"] = dict(labels)
        if self._settings.runtime_env:
            options["runtime_env"] = self._settings.runtime_env
        if self._mark is not None:
            options["name"] = f"{self._mark}:{name}:{os.getpid()}-{id(self)}-{self._count}"
            options["namespace"] = NAMESPACE
        from .actor import RayWorker  # noqa: PLC0415 - a runtime does not need an actor's imports

        made = _ray().remote(concurrency_groups=_GROUPS)(RayWorker)
        return Actor(made.options(**options).remote(welcome))


def own_node() -> str:
    """Ray's id of this process's node: several hosts, such as containers, may share a name. "" outside of Ray."""
    ray = imported("ray")
    return cast("str", ray.get_runtime_context().get_node_id()) if ray is not None and ray.is_initialized() else ""


def look_beside(those: Sequence[tuple[int, str]]) -> list[bool]:
    """In a Ray process on the actors' node: whether those processes work; their wardens are notified."""
    before = [ProcessSample(pid) for pid, _ in those]
    time.sleep(_LOOK)
    return [one.works() and _say_here(folder) for one, (_, folder) in zip(before, those, strict=True)]


def _say_here(folder: str) -> bool:
    """Tell an actor's warden that its runtime is alive. False if the warden has ended."""
    try:
        pipe = os.open(Path(folder) / "word", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        os.write(pipe, b".")
    except BlockingIOError:
        pass  # the pipe is full: enough notifications are waiting
    except OSError:
        return False
    finally:
        os.close(pipe)
    return True


def _check_answers(address: str) -> None:
    """Raise RayUnavailable if no process listens there: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _ANSWER).close()
    except (OSError, ValueError) as error:
        raise RayUnavailable(
            f"no Ray cluster answers at {address!r}: {error}. Start its head (`ray start --head`), or correct it"
        ) from error


def _ray() -> Any:
    import ray  # noqa: PLC0415 - takes half a second, and may not be installed

    return ray


def _print_messages(wanted: bool) -> None:
    """Set whether Ray prints messages of its nodes: standard output belongs to the program."""
    worker = imported("ray._private.worker")
    if hasattr(worker, "_worker_logs_enabled"):
        worker._worker_logs_enabled = wanted  # Ray has no other switch for that


def _end_actors(prefix: str) -> None:
    """Kill the actors whose names have this prefix, and return when they have ended."""
    ray = _ray()
    from ray.util import list_named_actors  # noqa: PLC0415

    for one in cast("list[dict[str, str]]", list_named_actors(all_namespaces=True)):
        if one["namespace"] == NAMESPACE and one["name"].startswith(prefix):
            with contextlib.suppress(ValueError):  # the actor has ended meanwhile
                actor = ray.get_actor(one["name"], NAMESPACE)
                ray.kill(actor, no_restart=True)
                with contextlib.suppress(ray.exceptions.RayError):
                    ray.get(actor.probe.remote(), timeout=10)


def _tell(done: Future[Any], then: Then) -> None:
    error = done.exception()
    if error is None:
        then(done.result(), None)
        return
    exceptions = _ray().exceptions
    if isinstance(error, exceptions.ActorUnavailableError):
        then(None, RayTrouble("away", str(error)))
    elif isinstance(error, exceptions.RayActorError):
        then(None, RayTrouble("gone", _cause(str(error))))
    else:
        then(None, RayTrouble("raised", _cause(str(error))))


def _cause(text: str) -> str:
    """Ray's reason for an actor's end, without tables and traceback."""
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.startswith(("\t", "  "))]
    said = [line for line in lines if "before finishing this task" not in line]
    cause = " ".join(said or lines)
    if "No module named 'callboard'" in text:
        cause = (
            "callboard is not installed on that node: install it there, or have it installed by "
            f"RayCluster(runtime_env=...). {cause}"
        )
    return cause if len(cause) <= _CAUSE else f"{cause[: _CAUSE // 3]} ... {cause[-_CAUSE // 3 * 2 :]}"


@contextlib.contextmanager
def _without_advice() -> Generator[None]:
    """Suppress two lines that Ray would write to standard error without any problem."""

    def wanted(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(_UNWANTED)

    names = ("ray._private.worker", "ray._private.authentication.authentication_token_setup")
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(wanted)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(wanted)


@contextlib.contextmanager
def _signals_kept() -> Generator[None]:
    """Restore this process's signal handlers after the block: Ray would end it on SIGTERM, whatever the program does
    then.

    It uses the C library: Python allows this only in the main thread, and does not see handlers that Ray has set.
    """
    if sys.platform == "win32":
        yield
        return
    library = ctypes.CDLL(None)
    kept = {number: ctypes.create_string_buffer(_SIGACTION) for number in _SIGNALS}
    for number, action in kept.items():
        library.sigaction(int(number), None, action)
    try:
        yield
    finally:
        for number, action in kept.items():
            library.sigaction(int(number), action, None)
