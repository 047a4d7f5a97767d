"""What a worker process and its runtime say to each other: frames of msgpack over a socket pair.

A frame is four bytes of length (little-endian), then one tagged Struct. Each frame about an attempt carries its fencing
token; one with another token than the attempt that runs is stale and dropped.

| to the process | | from it | |
| --- | --- | --- | --- |
| `Hello` | first: where it is to find modules | `Up` | it is ready |
| `Begin` | run this body | `Said` | a heartbeat of the body |
| `Halt` | the body is to end | `Done` | how the body ended |
| `Ask` | does it live? | `Alive` | it does, and runs these |
| `Answered` | what came of what the body wants | `Want` | the body wants something of the runtime |
| `Leave` | end after what was asked before | `Unwanted` | it does not wait for that any more |
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ....actors.spec.schema import Finding
from ..contract import ErrorInfo, Status

_HEAD = 4


class Frame(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The base of all frames."""


class Hello(Frame, frozen=True):
    """How the program that started the process finds its modules, what its `__main__` is, and where it was begun
    (`runtime/functions/main_program.py`).
    """

    path: list[str]
    argv: list[str]
    main: tuple[str, str] | None
    folder: str


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """What `TaskContext` is made of."""

    task: str
    attempt: int = 1
    job_id: str = ""
    workstream_id: str = ""
    results: dict[str, Any] = {}
    details: Any = None
    saved: Any = None
    args: dict[str, Any] = {}


class Begin(Frame, frozen=True):
    """Run the function of that import path. `facts` are for one that takes the context, `secrets` by their names.

    bound: the fields that log lines of the body carry. text: what tells the text of a module that lies in a folder,
    which another machine may not have.
    """

    token: int
    function: str
    facts: Facts | None = None
    secrets: dict[str, str] = {}
    bound: dict[str, Any] = {}
    text: str | None = None


class Halt(Frame, frozen=True):
    """Let the body end: its next heartbeat raises."""

    token: int


class Ask(Frame, frozen=True):
    """Answer, whatever the body does."""


class Refusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error by which something is refused: its kind, and its text (or, with `findings`, what they are about)."""

    kind: str
    text: str
    findings: list[Finding] = []


class Answered(Frame, frozen=True):
    """The answer to the body's question of that number: bytes that depend on what was asked, or a refusal."""

    token: int
    number: int
    payload: bytes = b""
    refusal: Refusal | None = None


class Leave(Frame, frozen=True):
    """Nothing more will come."""


class Up(Frame, frozen=True):
    """The process is ready for its first body."""


class Said(Frame, frozen=True):
    """A heartbeat of the body; or, if `saved`, its checkpoint."""

    token: int
    details: Any = None
    saved: bool = False


class Done(Frame, frozen=True):
    """The body's end. duration: seconds that it ran. cpu_seconds, peak_memory_bytes: what it used
    (`runtime/engines/usage.py`).
    left_behind: what it has started in other groups, and what runs (`runtime/engines/strays.py`).
    """

    token: int
    status: Status
    value: Any = None
    error: ErrorInfo | None = None
    duration: float = 0.0
    cpu_seconds: float | None = None
    peak_memory_bytes: int | None = None
    left_behind: tuple[int, ...] = ()


What = Literal["submit", "wait", "state", "approval"]


class Want(Frame, frozen=True):
    """The body asks, by a number of its own, to submit a child job, for its end or its state, or for an approval.

    name: the child's name, or (to wait, or for its state) its id; or the approval's. payload: the workstream, or the
    rule, in JSON.
    """

    token: int
    number: int
    what: What
    name: str
    payload: bytes = b""


class Unwanted(Frame, frozen=True):
    """The body does not wait for the answer to that question any more."""

    token: int
    number: int


class Alive(Frame, frozen=True):
    """The process lives, and runs these."""

    tokens: tuple[int, ...] = ()


ToProcess = Hello | Begin | Halt | Ask | Answered | Leave
FromProcess = Up | Said | Done | Alive | Want | Unwanted
_encoder = msgspec.msgpack.Encoder()


def packed(frame: Frame) -> bytes:
    """The bytes of a frame."""
    body = _encoder.encode(frame)
    return len(body).to_bytes(_HEAD, "little") + body


class Unpacker:
    """Takes bytes as they come and gives the bodies of whole frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes. Returns the frames that are whole now, not yet decoded."""
        held = self._held
        held += data
        bodies: list[bytes] = []
        start = 0
        while len(held) - start >= _HEAD:
            end = start + _HEAD + int.from_bytes(held[start : start + _HEAD], "little")
            if end > len(held):
                break
            bodies.append(bytes(held[start + _HEAD : end]))
            start = end
        del held[:start]
        return bodies
