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
from typing import Literal, Protocol

from ...text.secrets import Mask
from ..contract import ErrorInfo, Outcome
from ..files import make_file
from ..process.wire import Unwanted, Want
from .cluster import Actor
from .wire import Order

Stage = Literal["none", "looked_for", "placed", "up", "killed", "over"]


class RayJob:
    """One call, from its order to its end."""

    def __init__(
        self, order: Order, data: bytes, *, seat: RaySeat, output: tuple[Path, Path | None] | None, mask: Mask | None
    ) -> None:
        self.order = order
        self.data = data  # the packed order
        self.seat = seat
        self.output = output  # where it goes, and below what
        self.mask = mask
        self.halted = False
        self.forced = False
        self.due: float | None = None  # on the monotonic clock
        self.began = time.monotonic()
        self.last = ""  # its last line so far
        self.file = -1
        self.kept: str | None = None  # where its output is

    @property
    def token(self) -> int:
        """Its fencing token."""
        return self.order.token

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

    def cancelled(self, text: str) -> Outcome:
        """Its end, if it was stopped."""
        return self._without_result("cancelled", ErrorInfo(type="cancelled", message=text))

    def lost(self, reason: str) -> Outcome:
        """Its end, if its worker is gone."""
        return self._without_result("lost", ErrorInfo(type="worker_lost", message=reason, category="transient"))

    def _without_result(self, status: Literal["cancelled", "lost"], error: ErrorInfo) -> Outcome:
        return Outcome(token=self.token, status=status, error=error, duration=time.monotonic() - self.began)


class RaySeat:
    """An incarnation of a worker, with its actor. Its fields belong to the keeper's thread."""

    def __init__(self, worker: str, incarnation: int) -> None:
        self.worker = worker
        self.incarnation = incarnation
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
        self.due: float | None = None
        self.deadline: float | None = None  # for what it runs when it is stopped
        self.dead = False
        self.closing = False  # it takes nothing new
        self.spoiled = False  # something there could not be ended
        self.asked = False  # its end was asked for
        self.wanted = False  # somebody waits for its answer
        self.probed = False  # it owes one


class RayListener(Protocol):
    """Who hears of it, in the thread."""

    def job_said(self, job: RayJob, details: object) -> None:
        """The body's heartbeat."""

    def job_wants(self, job: RayJob, want: Want | Unwanted) -> None:
        """The body asks for something, or does not wait for it any more."""

    def job_done(self, job: RayJob, outcome: Outcome) -> None:
        """Its end."""

    def job_stuck(self, job: RayJob) -> None:
        """It cannot be ended."""

    def seat_spoiled(self, seat: RaySeat) -> None:
        """Its worker needs another actor."""

    def seat_over(self, seat: RaySeat) -> None:
        """Its actor is gone."""

    def worker_alive(self, seat: RaySeat, tokens: tuple[int, ...], *, busy: bool) -> None:
        """The worker answered; or (`busy`) it does not, and is seen to work."""

    def worker_died(self, seat: RaySeat, reason: str) -> None:
        """Its actor is gone, unasked. What ran there is told after this."""

    def worker_unfit(self, seat: RaySeat, reason: str) -> None:
        """No node could hold it."""

    def worker_fits(self, seat: RaySeat) -> None:
        """Now one could."""

    def keeper_closed(self) -> None:
        """Nothing is left."""
