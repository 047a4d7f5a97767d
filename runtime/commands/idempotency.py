"""Idempotent commands: a command with the same `request_id` takes effect once, and has the same answer.

Rules (DESIGN section 8, "Idempotency")
-----
- A key is bound to the operation, its target and its payload. The same key with others is refused: `RequestIdReused`.
- The journal knows which commands took effect: key and effect are one commit, so both survive a restart.
- A refusal changes nothing and is not kept: a command with the same key is judged again by the state of that time, and
  the key stays unbound. To keep a refusal would cost a commit without an effect.
- While a command is in flight, others with its key wait for it. It is in flight until the kernel has answered it,
  also if its caller has been cancelled meanwhile.
- An expired key counts as new, unless the target of its command has not ended.
- A journal has one scope of keys for submissions and all other commands: no key stands for two commands, whatever they
  are and however they arrive.
- If the user gave no key, and the transport (HTTP, the command line, another node) needs one, `made_key` makes it. Such
  a command is not counted among those with a `request_id`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from ...actors.kernel.recent import keep_last
from ...actors.messages.commands import Reply, Request
from ...actors.messages.inputs import Message
from ...actors.user_code import plain, shown
from .inflight import InFlight

if TYPE_CHECKING:
    from ...actors.records.entities import RequestRecord
    from ..host import KernelHost
    from ..journal.contract import InboxRow, Journal

ReadEarlierRequest = Callable[[], Awaitable["RequestRecord | None"]]
"""Reads the record that is kept under the key of a command in flight."""


class NoOpAnswer(msgspec.Struct, frozen=True):
    """The answer to a command that has nothing to do. It is not kept."""

    answer: Any


First = Callable[[ReadEarlierRequest], Awaitable["RequestRecord | NoOpAnswer | None"]]
"""A step before a command. Returns the kept record if the command has meanwhile taken effect on another node."""
KEEP_REQUESTS = 86_400.0
"""The default time in seconds for which the key of a command is kept."""
LONGEST_ID = 200
_MADE = "auto-"  # the prefix of keys that no user gave
_REMEMBERED = 256  # the number of answers that are kept in memory


class RequestIdReused(ValueError):  # noqa: N818 - it says what is the matter
    """The `request_id` was given to another command before. Use a new one, or send exactly what was sent under it.

    Over HTTP it is a 422.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class Requests:
    """Passes commands to the kernel of one runtime, each command with a key once.

    read: runs a blocking query of the journal. keep: in seconds.
    """

    def __init__(self, host: KernelHost, journal: Journal, read: Callable[..., Awaitable[Any]], keep: float) -> None:
        self.rows: dict[str, InboxRow] = {}  # the inbox rows of commands in flight, by their keys
        self.answers: dict[str, bytes] = {}  # the kept answers of the last commands, by their keys
        self.asked = 0  # the number of commands with a key that a user gave
        self.hits = 0  # the number of those that were answered from a kept answer
        self._host = host
        self._journal = journal
        self._read = read
        self._keep = keep
        self._in_flight = InFlight()

    def in_flight(self, request_id: str) -> bool:
        """Whether the command with this key is in flight."""
        return request_id in self._in_flight

    async def give(
        self,
        make: Callable[[Reply], Message],
        operation: str,
        payload: object,
        *,
        request_id: str | None = None,
        refuse: Callable[[], Exception | None] | None = None,
        first: First | None = None,
        kept: Callable[[RequestRecord], Any] | None = None,
        over: Callable[[], None] | None = None,
    ) -> Any:
        """Pass a command to the kernel. Returns its answer when the effect is durable, and raises its refusal.

        make: makes the kernel's input. request_id: a command with the same key takes effect once; the key is bound to
        the operation and its payload. refuse: returns an error to raise, or None. first: a step before the command,
        which may find that the command has taken effect on another node, or has nothing to do. If the command took
        effect under its key before, `refuse` and `first` are not called, and the answer is None, or the result of
        `kept` for the kept record. over: called when the kernel has answered, also if the caller no longer waits; not
        called if the kernel got no command.
        """
        request: Request | None = None
        leave: Callable[[], None] = _nobody_waits
        read_earlier: ReadEarlierRequest = _nothing_kept
        if request_id is not None:
            request = self._request(check_request_id(request_id), operation, payload)
            leave, read_earlier = await self._in_flight.enter(request.id), partial(self._known, request)
            self.asked += not _was_made(request.id)
        sent = False
        try:
            record = await read_earlier()
            if record is None:
                if refuse is not None and (error := refuse()) is not None:
                    raise error
                found = None if first is None else await first(read_earlier)
                if isinstance(found, NoOpAnswer):
                    return found.answer
                record = found
            if record is not None:
                return None if kept is None else kept(record)
            await self._host.gate()
            sent = True
            return await self._ask(make, request, leave, over)
        finally:
            if not sent:
                leave()

    def _request(self, request_id: str, operation: str, payload: object) -> Request:
        row = self.rows.get(request_id)
        come = (0, 0.0) if row is None else (row.row, row.sent_at)
        return Request(request_id, operation, fingerprint_of(operation, payload), self._keep, *come)

    async def _ask(
        self,
        make: Callable[[Reply], Message],
        request: Request | None,
        leave: Callable[[], None],
        over: Callable[[], None] | None,
    ) -> Any:
        replies: list[Reply] = []

        def made(reply: Reply) -> Message:
            replies.append(reply)
            return make(reply)

        def answered() -> None:
            leave()
            if over is not None:
                over()

        value = await self._host.ask(made, request=request, over=answered)
        if request is not None:
            self._remember(request.id, replies[0].kept)
        return value

    async def _known(self, request: Request) -> RequestRecord | None:
        record: RequestRecord | None = await self._read(self._journal.reader.request, request.id)
        if record is None or not self._is_kept(record):
            return None
        if record.fingerprint != request.fingerprint:
            other = ", to something else or with other arguments" if record.operation == request.operation else ""
            raise RequestIdReused(
                f"The request id {request.id!r:.80} was given to another command before, which took effect: "
                f"{record.operation}{other}. "
                "Use a new id for a new command, or send exactly what was sent under this one."
            )
        self.hits += not _was_made(request.id)
        self._remember(request.id, bytes(record.answer))
        return record

    def _remember(self, request_id: str, kept: bytes) -> None:
        keep_last(self.answers, request_id, kept, _REMEMBERED)

    def _is_kept(self, record: RequestRecord) -> bool:
        """Whether a kept record is still valid: an expired one may not be pruned yet."""
        kernel = self._host.kernel
        owner = kernel.entities.get(record.owner)
        return record.expires_at > self._host.now() or (owner is not None and not owner.ended)


async def _nothing_kept() -> None:
    """The `ReadEarlierRequest` of a command without a key, which has no record."""


def _nobody_waits() -> None:
    """The end of a command without a key, for which no other command waits."""


def made_key() -> str:
    """A new key for a command that has none."""
    return f"{_MADE}{uuid4().hex}"


def id_of_key(prefix: str, key: str, caller: str | None = None) -> str:
    """The id made from a key, if no id is given: the same key and caller give the same id."""
    return prefix + _hash(msgspec.json.encode((caller, key)), 8)


def _was_made(key: str) -> bool:
    return key.startswith(_MADE)


def check_request_id(request_id: object) -> str:
    """The key as a plain text. Raises TypeError and ValueError for an invalid key."""
    key = plain(request_id)
    if type(key) is not str:
        raise TypeError(f"a request_id is a str, not {shown(request_id, 60)}")
    if not (0 < len(key) <= LONGEST_ID and key.isprintable()):
        raise ValueError(f"{shown(key, 80)} cannot be a request_id: use 1 to {LONGEST_ID} printable characters")
    return key


def fingerprint_of(operation: str, payload: object) -> str:
    """The fingerprint that binds a key to its operation and payload."""
    text = msgspec.json.encode((operation, payload), order="sorted")
    return _hash(text, 16)


def _hash(text: bytes, size: int) -> str:
    from hashlib import blake2b  # noqa: PLC0415 - slow to import, and only commands with a key need it

    return blake2b(text, digest_size=size).hexdigest()
