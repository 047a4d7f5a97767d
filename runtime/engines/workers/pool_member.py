"""The records of the pools of both transports: their members, and the jobs that run in these.

A *member* is an incarnation of a worker, with its process or actor. A member is dead if its process ended without a
request.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from typing import Any, Generic, Literal, TypeVar

from ...calling import ErrorInfo, Outcome
from ...text.secrets import Mask
from ..heartbeats import Heartbeats

GONE = "the worker had ended before it started"
NEVER_BEGUN = "cancelled before it started"
NOT_IN_TIME = "its worker was stopped, and it did not end in time"
TERMINATED = "it was terminated"


class PoolMember:
    """An incarnation of a worker. Its fields belong to the thread of its transport."""

    def __init__(self, worker: str, incarnation: int) -> None:
        self.worker = worker
        self.incarnation = incarnation
        self.dead = False
        self.closing = False  # the member accepts no new calls
        self.asked = False  # the end was requested: a replacement, not a loss
        self.probed = False  # a probe is not answered yet
        self.deadline: float | None = None  # for its running calls after a stop


S = TypeVar("S", bound=PoolMember)


class WorkerJob(ABC, Generic[S]):
    """One call, from its order to its end. The engine sets its member."""

    member: S

    def __init__(self, token: int, mask: Mask | None) -> None:
        self.token = token
        self.mask = mask
        self.heartbeats = Heartbeats()
        self.halted = False
        self.began: float | None = None  # on the monotonic clock
        self.peak_memory_bytes: int | None = None  # if its process died under it, and the peak is known

    @abstractmethod
    def last_line(self) -> str:
        """The last line that it has printed, as far as it is known here."""

    @abstractmethod
    def close(self) -> None:
        """End its output: no more is printed."""

    def cancelled(self, text: str) -> Outcome:
        """The outcome of the call, if it was stopped."""
        return self._without_result("cancelled", ErrorInfo(type="cancelled", message=text))

    def lost(self, reason: str) -> Outcome:
        """Return the outcome of the call, if its worker has died."""
        return self._without_result("lost", ErrorInfo(type="worker_lost", message=reason, category="transient"))

    def _without_result(self, status: Literal["cancelled", "lost"], error: ErrorInfo) -> Outcome:
        spent = 0.0 if self.began is None else time.monotonic() - self.began
        return Outcome(
            token=self.token, status=status, error=error, duration=spent, peak_memory_bytes=self.peak_memory_bytes
        )


J = TypeVar("J", bound=WorkerJob[Any])
