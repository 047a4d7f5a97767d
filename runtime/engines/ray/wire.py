"""What a Ray actor of ours and its runtime say to each other: the frames of worker processes
(`runtime/engines/process/wire.py`), and these.

Frames travel in batches, one batch a call of the actor. Both ways a batch has a number, and each number is taken once:
a call whose answer was lost on the way is made again under the same number, and nothing is done twice.

| to the actor | | from it | |
| --- | --- | --- | --- |
| `Order` | run this | `Here` | first: where it runs |
| `Stop` | end that, by its manners or by force | `Said` | a heartbeat, or a checkpoint |
| `Answered` | what came of what the body wants | `Printed` | the next bytes of its output, or its last line so far |
| | | `Want`, `Unwanted` | the body wants something of the runtime, or does not wait for it |
| | | `Over` | how it ended |
"""

from __future__ import annotations

import msgspec

from ..contract import Outcome
from ..workers.wire import Answered, Begin, Frame, Said, Unwanted, Want


class Welcome(msgspec.Struct, frozen=True):
    """What an actor is made with. worker: "name#incarnation". path, argv, main, folder: as a worker process is told
    (`wire.Hello`).

    environment: variables by which what is started there is known. lease: seconds without a word of its runtime after
    which it ends itself, with all that it started.
    """

    worker: str
    path: list[str]
    argv: list[str]
    main: tuple[str, str] | None
    folder: str
    environment: dict[str, str]
    lease: float


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """A command line, as `CommandCall` has it. results: what its dependencies returned, for a file there."""

    argv: list[str] = []
    shell: str | None = None
    cwd: str | None = None
    env: dict[str, str] = {}
    expected_exit_codes: list[int] = []
    results: bytes | None = None


class Order(Frame, frozen=True):
    """Run a function (`begin`), or a command (`line`), under the token.

    on_loop: the function is async. recycle_after: bodies that the process of a plain one may run. secrets: values that
    are hidden in what a command prints.
    """

    token: int
    begin: Begin | None = None
    line: Line | None = None
    on_loop: bool = False
    grace: float = 10.0
    output_limit: int = 0
    recycle_after: int | None = None
    secrets: tuple[str, ...] = ()


class Stop(Frame, frozen=True):
    """Let what runs under the token end; with `force`, without waiting for its manners."""

    token: int
    force: bool = False


class Here(Frame, frozen=True):
    """The actor is up: its host's name, its process there, the folder that its warden has, and Ray's id of its node."""

    host: str
    pid: int
    folder: str = ""
    node: str = ""


class Printed(Frame, frozen=True):
    """The next bytes of what is kept of an output; or, with `last`, its last line so far."""

    token: int
    data: bytes = b""
    last: str | None = None


class Over(Frame, frozen=True):
    """The end of what ran. The outcome's `output_path` says only whether there is an output."""

    outcome: Outcome


ToActor = Order | Stop | Answered
FromActor = Here | Said | Printed | Want | Unwanted | Over
