"""Fixtures and settings of all tests: the event loops, Ray, and the environment of started programs."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import HealthCheck, settings

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# Hundreds of tests start programs, and each program would compile the library again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Programs that nohup or a script starts in the background inherit ignored signals. Tests send these signals.
for _number, _default in (
    (signal.SIGINT, signal.default_int_handler),
    (getattr(signal, "SIGHUP", None), signal.SIG_DFL),
):
    if _number is not None and signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _default)

# The time of an example depends on the machine, and not on the code.
settings.register_profile("callboard", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("callboard")

_FOUND = entry_points(group="pytest11", name="callboard")  # pytest has loaded it already if the checkout is installed
pytest_plugins = [
    "tests.selection",
    "tests.transition_coverage",
    "tests.postgres.fixtures",
    *([] if _FOUND else ["callboard.runtime.testing.plugin"]),
]


@pytest.fixture(autouse=True, scope="session")
def _machine_may_be_busy() -> Iterator[None]:
    """Switch off the notice of a blocked event loop, except in tests that set its limit: on a busy machine it may come
    at any time, and tests count the other notices.
    """
    from callboard.actors.spec.model import HealthChecks

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("callboard.runtime.runtime.HealthChecks", partial(HealthChecks, loop_blocked=0))
        yield


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("asyncio", {"use_uvloop": True}), id="uvloop"),
        pytest.param(("trio", {}), id="trio"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> Any:
    """The event loops that the library supports. (`tests/selection.py` chooses the loops of each test.)"""
    return request.param


@pytest.fixture
def no_logs(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """Make structlog and `logging` look unconfigured. Returns the library's logger.

    pytest adds handlers to all loggers that it can find, so this replaces two loggers by others that it cannot find.
    """
    import structlog

    from callboard.runtime.text import logs

    structlog.reset_defaults()
    make = logging.Logger  # not `getLogger`, whose loggers pytest finds
    library, tasks = make("callboard"), make("callboard.task")
    tasks.parent = library
    monkeypatch.setattr(logs, "_LIBRARY", library)
    monkeypatch.setattr(logs, "_TASKS", tasks)
    monkeypatch.setattr(logs, "_LAST_RESORT", logs.LastResort())
    return library


@pytest.fixture(scope="session")
def ray_here() -> Iterator[Any]:
    """One Ray cluster on this machine for all tests that need one; tests may add nodes to it, and remove them."""
    ray: Any = pytest.importorskip("ray", reason='Ray is not installed: pip install "callboard[ray]"')
    from ray.cluster_utils import Cluster

    with (
        tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder,  # a short path
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", folder)
        patch.setenv("RAY_worker_niceness", "0")  # by default 15: on a busy machine an actor took minutes to start
        Path(folder, "ray").mkdir()
        head = {"num_cpus": 2, "object_store_memory": 80_000_000, "include_dashboard": False, "temp_dir": folder}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False, namespace="callboard")
        try:
            yield cluster
        finally:
            ray.shutdown()
            cluster.shutdown()


@pytest.fixture(autouse=True, scope="module")
def _set_apart() -> None:
    """Exclude all objects of earlier modules from garbage collection.

    Imported modules and reports of earlier tests stay: a test that collects garbage looked for half a second at them.
    """
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect no garbage while pytest imports all tests: nearly everything stays, and looking for it took a fourth."""
    gc.disable()
    try:
        with _compiled_once():
            return (yield)
    finally:
        gc.enable()


@contextmanager
def _compiled_once() -> Iterator[None]:
    """In a new checkout, let one process after the other import the tests.

    Else each process of xdist compiles all tests and packages at the same time as the others: 20 s each.
    """
    last = f"test_transition_coverage.{sys.implementation.cache_tag}-pytest-{pytest.__version__}.pyc"
    here = Path(__file__).parent
    if fcntl is None or (here / "__pycache__" / last).exists():
        yield
        return
    name = f"callboard-tests-{os.getuid()}-{crc32(str(here).encode()):08x}"
    with Path(tempfile.gettempdir(), name).open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        yield


def pytest_collection_finish() -> None:
    """Exclude the objects of pytest's collection from garbage collection, so that collecting and counting are fast.

    Collect more rarely, too (by default for each 700 new objects): that took a tenth of the time of the tests.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000)
