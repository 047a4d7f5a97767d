"""The messages between workers and their runtime, for every transport: frames of msgpack.

A frame is four bytes of length (little-endian), then one tagged Struct. Each frame about an attempt carries its fencing
token; a frame with another token than the running attempt's is stale and dropped. Each transport adds its own frames
(`engines/process/wire.py`, `engines/ray/wire.py`).
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ....actors.spec.schema import Finding
from ...calling import Shown
from ..steps import FlowFacts

_HEAD = 4
_encoder = msgspec.msgpack.Encoder()


class Frame(msgspec.Struct, frozen=True, tag=True, omit_defaults=True, gc=False):
    """The base of all frames."""


class Facts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The data from which `TaskContext` is made."""

    task: str
    attempt: int = 1
    job_id: str = ""
    workstream_id: str = ""
    results: dict[str, Any] = {}
    details: Any = None
    saved: Any = None
    args: dict[str, Any] = {}


class Begin(Frame, frozen=True):
    """Run the function with that import path, in a context with these `facts`. `secrets` are values by name.

    bound: the fields of the body's log lines. text: identifies the source text of a module in a folder, which another
    machine may not have. flow: None if the body cannot take steps.
    """

    token: int
    function: str
    facts: Facts | None = None
    secrets: dict[str, str] = {}
    bound: dict[str, Any] = {}
    text: str | None = None
    flow: FlowFacts | None = None


class Heartbeat(Frame, frozen=True, tag="Said"):
    """A heartbeat of the body; or, if `saved`, its checkpoint."""

    token: int
    details: Any = None
    saved: bool = False


class ShownFrame(Frame, frozen=True, tag="Shown"):
    """The progress and text that the body shows."""

    token: int
    shown: Shown


class RequestRefusal(msgspec.Struct, frozen=True, omit_defaults=True):
    """The error that refuses a request: its kind, and its text (or, with `findings`, what they are about)."""

    kind: str
    text: str
    findings: list[Finding] = []


class RequestAnswer(Frame, frozen=True, tag="Answered"):
    """The answer to the body's request with that number: bytes that depend on the request, or a refusal."""

    token: int
    number: int
    payload: bytes = b""
    refusal: RequestRefusal | None = None


What = Literal[
    "submit",
    "wait",
    "state",
    "approval",
    "steps",
    "keep",
    "pause",
    "stay",
    "settle",
    "take",
    "message",
    "send",
    "tool",
    "leave",
    "run",
    "regain",
    "slot",
]


ALONE = b"alone"
"""The payload of a pause during which no step of the body runs."""


class BodyRequest(Frame, frozen=True):
    """A body's request, numbered by the body: to submit a child job, for its end or its state, or for an approval; for
    the kept steps of its flow, to keep a step, or to pause without a slot; to receive a message, to wait for one, or to
    send one; for a unit of a tool, or to leave it; to run a step on a worker, and to have the slot back when its end is
    durable; to wait for the slot after a wait that the body has given up.

    name: the child's name, or (to wait, or for its state) its id; or the approval's; or how many kept steps it has got,
    the label of the step, or the end of the pause (UTC epoch seconds); or the message's; or the tool's, or (to leave
    it) the number of its use; or (to run it) the step's, or (to have the slot back) the number of that run. payload:
    the workstream, the rule, the step's record, the request for a message, for a tool or for a run, until when it waits
    for a message, or how the function that used the tool has ended, in JSON.
    """

    token: int
    number: int
    what: What
    name: str
    payload: bytes = b""


class RequestWithdrawn(Frame, frozen=True, tag="Unwanted"):
    """The body does not wait for the answer to that request any more. given_up: as in `StepRecord`, of a step."""

    token: int
    number: int
    given_up: str | None = None


def packed(frame: Frame) -> bytes:
    """The bytes of a frame."""
    body = _encoder.encode(frame)
    return len(body).to_bytes(_HEAD, "little") + body


class Unpacker:
    """Splits received bytes into the bodies of whole frames."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add the next bytes. Returns the frames that are now complete, not yet decoded."""
        received = self._held
        received += data
        bodies: list[bytes] = []
        start = 0
        while len(received) - start >= _HEAD:
            end = start + _HEAD + int.from_bytes(received[start : start + _HEAD], "little")
            if end > len(received):
                break
            bodies.append(bytes(received[start + _HEAD : end]))
            start = end
        del received[:start]
        return bodies
