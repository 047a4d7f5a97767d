"""A process that has imported everything, and forks a victim for each line of its input: `python zygote.py`.

Importing takes most of the time of a start, and a sweep starts hundreds. Each line of its input is an `Order`; it
answers with the victim's pid, and, when that has ended, with its exit code (negative: the signal).
A victim leads a session and a process group of its own. The zygote adopts the processes that it leaves (if the system
allows that), and reaps them when they have ended.
"""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from functools import partial
from pathlib import Path
from typing import Literal, NoReturn

import anyio
import msgspec
from anyio._backends import _asyncio, _trio  # noqa: F401 - so that no victim has to
from tests.reliability.kills import archiving, flow_scene, scene
from tests.reliability.kills.death import Death, arm

from callboard.runtime import cli, runtime  # noqa: F401 - the same
from callboard.runtime.commands import client  # noqa: F401 - the same
from callboard.runtime.commands import idempotency as requests  # noqa: F401 - the same
from callboard.runtime.journal import (
    archive,  # noqa: F401 - the same
    jsonl,  # noqa: F401 - the same
)
from callboard.runtime.journal.postgres import place
from callboard.runtime.journal.sqlite import journal as sqlite  # noqa: F401 - the same


class Order(msgspec.Struct, frozen=True):
    """The next victim: what it runs, where, and at which point it kills itself (None: it does not)."""

    folder: str
    death: Death | None = None
    play: Literal["scene", "flows", "prepare", "archive", "open", "migrate"] = "scene"
    processes: bool = False
    drops: bool = False  # the bodies of flows are dropped where they sleep
    backend: Literal["asyncio", "trio"] = "asyncio"
    ray: str = ""  # the address of a Ray cluster that runs one of the flows
    node: str = ""  # this node's name, if several nodes run the scene
    elsewhere: bool = False  # as if on another machine: no node can check whether it runs


_PLAYS = {"prepare": archiving.prepare, "open": archiving.opened, "migrate": archiving.migrated}


def _victim(order: Order) -> NoReturn:
    code = 1
    try:
        os.setsid()
        os.environ["SCENE"] = order.folder
        os.environ["SCENE_NODE"] = f"{order.folder} {order.node}"
        null = os.open(os.devnull, os.O_RDWR)
        errors = os.open(Path(order.folder) / "stderr", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        for number, handle in enumerate((null, null, errors)):
            os.dup2(handle, number)
        arm(order.death)
        if order.elsewhere:
            place._kernel = lambda _: order.node
        folder = Path(order.folder)
        match order.play:
            case "scene":
                anyio.run(scene.run, folder, order.processes, order.node, backend=order.backend)
            case "flows":
                run = partial(flow_scene.run, drops=order.drops, ray=order.ray)
                anyio.run(run, folder, order.processes, order.node, backend=order.backend)
            case "archive":
                archiving.archive(folder)
            case play:
                anyio.run(_PLAYS[play], folder, backend=order.backend)
        code = 0
    except BaseException:  # whatever the error: the child must not continue as a zygote
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stderr.flush()
        os._exit(code)


def _reap(pid: int) -> int:
    """Wait for that child, and reap the other processes that this process has adopted."""
    while True:
        found, status = os.waitpid(-1, 0)
        if found == pid:
            return os.waitstatus_to_exitcode(status)


def main() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
    gc.freeze()
    for line in sys.stdin:
        order = msgspec.json.decode(line, type=Order)
        pid = os.fork()
        if pid == 0:
            _victim(order)
        print(pid, flush=True)
        print(_reap(pid), flush=True)


if __name__ == "__main__":
    main()
