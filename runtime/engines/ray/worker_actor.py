"""What the keeper of workers on Ray keeps: seats, and the calls that run there.

A *seat* is an incarnation of a worker: one actor, and what it was given. One whose actor is gone unasked is dead. One
where a body could not be ended is *spoiled*: it takes nothing new, and its actor ends with the rest of what it runs.

| an actor is | entered when | its due time |
| --- | --- | --- |
| none | its seat was made | (none) |
| looked for | a cluster that could hold it is looked for | the next look |
| placed | Ray was told to make it | (none: who wants it says how long it waits) |
| up | it said where it is | (of its calls: when one that was stopped is ended by force, and when it is given up) |
| killed | it was told to end | after some seconds: it counts as gone |
| over | it is gone | |
"""

from __future__ import annotations

import os
import time
from collections import deque
from pathlib import Path
from typing import Literal

from ...text.secrets import Mask
from ..files import make_file
from ..workers.seat import WorkerJob, WorkerSeat
from ..workers.wire import packed
from .cluster import Actor
from .wire import Order

Stage = Literal["none", "looked_for", "placed", "up", "killed", "over"]


class RayJob(WorkerJob["RaySeat"]):
    """One call, from its order to its end."""

    def __init__(self, order: Order, *, output: tuple[Path, Path | None] | None, mask: Mask | None) -> None:
        super().__init__(order.token, mask)
        self.order = order
        self.data = packed(order)
        self.output = output  # where it goes, and below what
        self.forced = False
        self.due: float | None = None  # on the monotonic clock
        self.began = time.monotonic()
        self.last = ""  # its last line so far
        self.file = -1
        self.kept: str | None = None  # where its output is

    def last_line(self) -> str:
        """The last line that it has printed, as far as that is known here."""
        return self.last

    def keep(self, data: bytes) -> None:
        """Keep what it printed, as it was cut to size and masked there. What cannot be written is left out."""
        try:
            if self.file < 0 and self.output is not None and self.kept is None:
                self.file = make_file(*self.output)
                self.kept = str(self.output[0])
            if self.file >= 0:
                os.write(self.file, data)
        except OSError:  # the body is not to suffer by it
            self.output = None

    def close(self) -> None:
        """Nothing more is printed."""
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


class RaySeat(WorkerSeat):
    """An incarnation of a worker, with its actor. Its fields belong to the keeper's thread."""

    def __init__(self, worker: str, incarnation: int) -> None:
        super().__init__(worker, incarnation)
        self.due: float | None = None  # on the monotonic clock
        self.resources: dict[str, float] = {}
        self.labels: dict[str, str] = {}
        self.stage: Stage = "none"
        self.actor: Actor | None = None
        self.place = ""  # where it is, for people
        self.pid = 0
        self.node = self.folder = ""  # where that is looked for
        self.looking = False  # somebody looks at it
        self.jobs: dict[int, RayJob] = {}
        self.waiting: deque[RayJob] = deque()  # not sent yet
        self.unsent = bytearray()
        self.pushed = 0  # batches
        self.polled = 0
        self.spoiled = False  # something there could not be ended
        self.wanted = False  # somebody waits for its answer
