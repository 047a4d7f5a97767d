"""The messages between a worker process and its runtime over a socket pair: the frames of all workers
(`runtime/engines/workers/wire.py`), and these.

 to the process | | from it | |
 --- | --- | --- | --- |
 `Hello` | first: where it finds modules | `ProcessReady` | it is ready |
 `Begin` | run this body | `Heartbeat`, `ShownFrame` | a heartbeat of the body; what it shows |
 `Halt` | the body is to end | `Done` | how the body ended |
 `Ask` | does it live? | `Alive` | it lives, and runs these |
 `RequestAnswer` | the answer to the body's request | `BodyRequest` | the body requests something from the runtime |
 `Leave` | end after earlier messages | `RequestWithdrawn` | the body does not wait for that any more |
"""

from __future__ import annotations

from typing import Any

from ...calling import ErrorInfo, Status
from ..workers.wire import Begin, BodyRequest, Frame, Heartbeat, RequestAnswer, RequestWithdrawn, ShownFrame


class Hello(Frame, frozen=True):
    """How the program that started the process finds its modules, its `__main__`, and the folder in which it was
    started (`runtime/functions/main_program.py`).
    """

    path: list[str]
    argv: list[str]
    main: tuple[str, str] | None
    folder: str


class Halt(Frame, frozen=True):
    """Make the body end: its next heartbeat raises."""

    token: int


class Ask(Frame, frozen=True):
    """Answer, whatever the body does."""


class Leave(Frame, frozen=True):
    """End: no more messages will come."""


class ProcessReady(Frame, frozen=True, tag="Up"):
    """The process is ready for its first body."""


class Done(Frame, frozen=True):
    """The body's end. duration: seconds that it ran. cpu_seconds, peak_memory_bytes: resources that it used
    (`runtime/engines/usage.py`). left_behind: running processes that it has started in other groups
    (`runtime/engines/strays.py`). unasked: as in `Outcome`.
    """

    token: int
    status: Status
    value: Any = None
    error: ErrorInfo | None = None
    duration: float = 0.0
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    left_behind: tuple[int, ...] = ()
    unasked: tuple[str, ...] | None = None


class Alive(Frame, frozen=True):
    """The process lives, and runs these tokens."""

    tokens: tuple[int, ...] = ()


ToProcess = Hello | Begin | Halt | Ask | RequestAnswer | Leave
FromProcess = ProcessReady | Heartbeat | ShownFrame | Done | Alive | BodyRequest | RequestWithdrawn
