"""`--engine ray` and `--address`: run a specification's tasks on a Ray cluster.

Rules:
- `--engine ray` applies to tasks that name no engine. If the specification has no worker on Ray, one is added for each
  node, with as many slots as nodes have processors on average.
- `--address` names the cluster; if workers are on Ray already, no other option is needed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Annotated

import typer

from .command_errors import CommandError

if TYPE_CHECKING:
    from ...actors.spec.model import Worker
    from ..engines.ray.cluster import RayCluster
    from ..specfiles.workstream_file import RunFile

Engine = Annotated[
    str | None, typer.Option("--engine", metavar="ray", help="Run tasks that name no engine on a Ray cluster.")
]
Address = Annotated[
    str | None,
    typer.Option("--address", metavar="HOST:PORT", help="The Ray cluster's head; auto; or local, to start one."),
]


def cluster_at(address: str | None) -> RayCluster | None:
    """Return the cluster at that address; None without one."""
    if address is None:
        return None
    from ..engines.ray.cluster import RayCluster  # noqa: PLC0415 - few need it

    return RayCluster(address=address)


def on_ray(asked: RunFile, engine: str | None, address: str | None, *, here: bool = True) -> RunFile:
    """Set the engine Ray in a run file, if it was asked for. here: whether this program has the workers."""
    if engine is None:
        return asked
    from msgspec.structs import replace  # noqa: PLC0415 - a tenth of the time that `--help` takes

    if engine != "ray":
        raise CommandError(
            f"--engine {engine}: only ray is allowed. Without it, each task gets the engine for its kind."
        )
    stream = asked.workstream
    tasks = [one if one.engine is not None else replace(one, engine="ray") for one in stream.tasks]
    asked = replace(asked, workstream=replace(stream, tasks=tasks))
    if not here or any(worker.engine == "ray" for worker in asked.workers or ()):
        return asked
    from ..handles.workers import default_workers  # noqa: PLC0415

    return replace(asked, workers=[*(asked.workers or default_workers()), _workers(address)])


def _workers(address: str | None) -> Worker:
    """Make one worker for each node. Raises CommandError if there is no cluster."""
    from ...actors.spec.model import Worker  # noqa: PLC0415 - heavy
    from ..engines.ray.cluster import RayCluster, ray_thread  # noqa: PLC0415
    from ..engines.ray.connection import Connection  # noqa: PLC0415

    cluster, done = Connection(RayCluster(address=address), None), threading.Event()
    sizes: list[int] = []
    errors: list[Exception] = []

    def told(value: list[int] | None, error: Exception | None) -> None:
        sizes.extend(value or ())
        if error is not None:
            errors.append(error)
        done.set()

    ray_thread().do(cluster.sizes, told)
    done.wait()
    if errors:
        raise errors[0]
    return Worker("ray", engine="ray", count=len(sizes), capacity=max(1, sum(sizes) // len(sizes)))
