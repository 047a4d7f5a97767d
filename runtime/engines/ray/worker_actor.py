"""The records of the pool of Ray workers: its members, and the calls that run in them.

A *member* is an incarnation of a worker: one actor, and its calls. If the actor ended without a request, the member is
dead. If a body could not be ended, the member is *spoiled*: it takes no new calls, and its actor ends with the rest of
them.

 an actor is | entered when | its due time |
 --- | --- | --- |
 none | its member was created | (none) |
 looked for | a node that could hold it is searched | the next search |
 placed | Ray was told to create it | (none: the caller of the worker sets a limit) |
 up | it reported where it is | (of its calls: when a stopped one is ended by force, and when it is given up) |
 killed | it was told to end | after some seconds: it counts as ended |
 over | it has ended | |
"""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path
from typing import Literal

from ...text.secrets import Mask
from ..files import make_file
from ..workers.pool_member import PoolMember, WorkerJob
from ..workers.wire import packed
from .cluster import Actor
from .wire import Order

Stage = Literal["none", "looked_for", "placed", "up", "killed", "over"]


class RayJob(WorkerJob["ActorMember"]):
    """One call, from its order to its end."""

    def __init__(self, order: Order, *, output: tuple[Path, Path | None] | None, mask: Mask | None) -> None:
        super().__init__(order.token, mask)
        self.order = order
        self.data = packed(order)
        self.output = output  # the path of the output, and its root folder
        self.forced = False
        self.due: float | None = None  # on the monotonic clock
        self.began = time.monotonic()
        self.last = ""  # the last line of the output so far
        self.file = -1
        self.kept: str | None = None  # the path of its kept output

    def last_line(self) -> str:
        """The last line that it has printed, as far as it is known here."""
        return self.last

    def keep(self, data: bytes) -> None:
        """Keep its output, which the actor has cut and masked. Bytes that cannot be written are dropped."""
        try:
            if self.file < 0 and self.output is not None and self.kept is None:
                self.file = make_file(*self.output)
                self.kept = str(self.output[0])
            if self.file >= 0:
                os.write(self.file, data)
        except OSError:  # the body continues without its output
            self.output = None

    def close(self) -> None:
        """Close the output: no more is printed."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class ActorMember(PoolMember):
    """An incarnation of a worker, with its actor. Its fields belong to the pool's thread."""

    def __init__(self, worker: str, incarnation: int) -> None:
        super().__init__(worker, incarnation)
        self.due: float | None = None  # on the monotonic clock
        self.resources: dict[str, float] = {}
        self.labels: dict[str, str] = {}
        self.stage: Stage = "none"
        self.actor: Actor | None = None
        self.place = ""  # where it is, for people
        self.pid = 0
        self.node = self.folder = ""  # Ray's id of its node, and its warden's folder: for observations
        self.looking = False  # the actor is being observed
        self.jobs: dict[int, RayJob] = {}
        self.waiting: deque[RayJob] = deque()  # not sent yet
        self.unsent = bytearray()
        self.pushed = 0  # number of batches sent
        self.polled = 0
        self.spoiled = False  # a call there could not be ended
        self.wanted = False  # a probe is requested
