"""The messages between a Ray actor and its runtime: the frames of worker processes
(`runtime/engines/process/wire.py`), and these.

Frames are sent in batches, one batch in each call of the actor. In both directions a batch has a number, and each
number is handled once: a call whose answer was lost is repeated under the same number, and nothing is done twice.

 to the actor | | from it | |
 --- | --- | --- | --- |
 `Order` | run this | `ActorReady` | first: where it runs |
 `Stop` | end that, by asking or by force | `Heartbeat` | a heartbeat, or a checkpoint |
 `RequestAnswer` | the answer to the body's request | `OutputPart` | the next bytes of its output, or its last line |
 | | `BodyRequest` | the body requests something from the runtime |
 | | `RequestWithdrawn` | the body does not wait for that any more |
 | | `CallEnd` | how it ended |
"""

from __future__ import annotations

import msgspec

from ...calling import Outcome
from ..workers.wire import Begin, BodyRequest, Frame, Heartbeat, RequestAnswer, RequestWithdrawn, ShownFrame


class Welcome(msgspec.Struct, frozen=True):
    """The data with which an actor is created. worker: "name#incarnation". path, argv, main, folder: as for a worker
    process (`wire.Hello`).

    environment: variables that mark all processes started there. lease: seconds without a message from its runtime
    after which it ends itself, with all that it started.
    """

    worker: str
    path: list[str]
    argv: list[str]
    main: tuple[str, str] | None
    folder: str
    environment: dict[str, str]
    lease: float


class CommandLine(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command line, as in `CommandCall`. results: its dependencies' results, for a file there."""

    argv: list[str] = []
    shell: str | None = None
    cwd: str | None = None
    env: dict[str, str] = {}
    expected_exit_codes: list[int] = []
    results: bytes | None = None


class Order(Frame, frozen=True):
    """Run a function (`begin`), or a command (`line`), under the token.

    on_loop: the function is async. recycle_after: maximum bodies in the process of a plain function. secrets: values
    that are masked in a command's output.
    """

    token: int
    begin: Begin | None = None
    line: CommandLine | None = None
    on_loop: bool = False
    grace: float = 10.0
    output_limit: int = 0
    recycle_after: int | None = None
    secrets: tuple[str, ...] = ()


class Stop(Frame, frozen=True):
    """End the call with that token; with `force`, without waiting for the body."""

    token: int
    force: bool = False


class ActorReady(Frame, frozen=True, tag="Here"):
    """The actor is up: its host's name, its process id there, its warden's folder, and Ray's id of its node."""

    host: str
    pid: int
    folder: str = ""
    node: str = ""


class OutputPart(Frame, frozen=True, tag="Printed"):
    """The next bytes of the kept output; or, with `last`, its last line so far."""

    token: int
    data: bytes = b""
    last: str | None = None


class CallEnd(Frame, frozen=True, tag="Over"):
    """The end of a call. The outcome's `output_path` says only whether there is an output."""

    outcome: Outcome


ToActor = Order | Stop | RequestAnswer
FromActor = ActorReady | Heartbeat | ShownFrame | OutputPart | BodyRequest | RequestWithdrawn | CallEnd
