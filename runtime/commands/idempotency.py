"""Idempotent commands: the same `request_id` again is the same command, and what took effect has the same answer.

Rules (DESIGN section 8, "Idempotency")
-----
- A key is bound to the operation, its target and its payload. With any other it is refused: `RequestIdReused`.
- What took effect under a key is asked of the journal, where key and effect are one commit: so it survives a restart.
- A refusal changes nothing and is not kept: under its key the command is judged anew, by the state of that time, and
  the key is bound to nothing. To keep it would cost a commit for what has no effect.
- While a command is in flight, others with its key wait for it. It is in flight until the kernel has answered it,
  also where its caller has been cancelled meanwhile.
- A key past its time counts as new, unless what it was about still lives.
- There is one scope of keys for all that a journal holds: a job that is submitted has its key where other commands have
  theirs, so no key stands for two things, whatever they are, and whichever way they come.
- Where nobody has said a key, and one is needed on the way (HTTP, the command line, another node), `made_key` makes it.
  A command under such a key is not counted among those that came with a `request_id`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

import msgspec

from ...actors.kernel.recent import keep_last
from ...actors.messages.commands import Reply, Request
from ...actors.messages.inputs import Message
from ...actors.user_code import plain, shown
from .inflight import InFlight

if TYPE_CHECKING:
    from ...actors.records.entities import RequestRecord
    from ..host import Host
    from ..journal.contract import InboxRow, Journal

Known = Callable[[], Awaitable["RequestRecord | None"]]
"""Looks for what is kept under the key of a command that is on its way."""


class Settled(NamedTuple):
    """The answer to a command for which there is nothing to do. Nothing is kept of it."""

    answer: Any


First = Callable[[Known], Awaitable["RequestRecord | Settled | None"]]
"""What is done before a command. Returns what is kept of it where it has taken effect meanwhile, on another node."""
KEEP_REQUESTS = 86_400.0
"""Seconds that the key of a command is kept, unless the runtime is told otherwise."""
LONGEST_ID = 200
_MADE = "auto-"  # what keys begin with that nobody has said
_REMEMBERED = 256  # answers that are at hand, for who asks next


class RequestIdReused(ValueError):  # noqa: N818 - it says what is the matter
    """The `request_id` was given to another command before. Use a new one, or send exactly what was sent under it.

    Over HTTP it is a 422.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class Requests:
    """Gives the kernel of one runtime its commands: each once, where it has a key.

    `read` runs a blocking question to the journal, `keep` is in seconds.
    """

    def __init__(self, host: Host, journal: Journal, read: Callable[..., Awaitable[Any]], keep: float) -> None:
        self.rows: dict[str, InboxRow] = {}  # by the keys of the commands that came by them and are in flight
        self.answers: dict[str, bytes] = {}  # what is kept of the last of them, by their keys
        self.asked = 0  # commands that came with a key which somebody has said
        self.hits = 0  # those of them that were answered from what is kept
        self._host = host
        self._journal = journal
        self._read = read
        self._keep = keep
        self._on_their_way = InFlight()

    def in_flight(self, request_id: str) -> bool:
        """Whether the command with this key is on its way."""
        return request_id in self._on_their_way

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
        """Give the kernel a command; returns its answer when it took effect, durably. Raises what it is refused with.

        make: makes the kernel's input. request_id: the same again is the same command, and nothing is done twice; it is
        bound to the operation and its payload. refuse: what it returns is raised. first: what must be done before; it
        may find that the command has taken effect meanwhile, on another node, or that there is nothing to do. Neither
        is asked where the command has taken effect under its key before: then it is answered with None, or with what
        `kept` makes of what is kept. over: called when the kernel has answered, also where nobody waits any more; not
        where it was given nothing.
        """
        request: Request | None = None
        leave: Callable[[], None] = _nobody_waits
        known: Known = _nothing_kept
        if request_id is not None:
            request = self._request(check_request_id(request_id), operation, payload)
            leave, known = await self._on_their_way.enter(request.id), partial(self._known, request)
            self.asked += not _was_made(request.id)
        sent = False
        try:
            record = await known()
            if record is None:
                if refuse is not None and (error := refuse()) is not None:
                    raise error
                found = None if first is None else await first(known)
                if isinstance(found, Settled):
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
        """Whether it counts, though it may not be pruned yet."""
        kernel = self._host.kernel
        owner = kernel.entities.get(record.owner)
        return record.expires_at > self._host.now() or (owner is not None and not owner.ended)


async def _nothing_kept() -> None:
    """A command without a key leaves nothing under one."""


def _nobody_waits() -> None:
    """Of commands without a key none is the same as another."""


def made_key() -> str:
    """A key that nobody has used, for a command that came without one."""
    return f"{_MADE}{uuid4().hex}"


def id_of_key(prefix: str, key: str, caller: str | None = None) -> str:
    """The id of what is made under a key, where none is said: the same key makes the same, another caller another."""
    return prefix + blake2b(msgspec.json.encode((caller, key)), digest_size=8).hexdigest()


def _was_made(key: str) -> bool:
    return key.startswith(_MADE)


def check_request_id(request_id: object) -> str:
    """The key, as a plain text. Raises TypeError, ValueError for what can be none."""
    key = plain(request_id)
    if type(key) is not str:
        raise TypeError(f"a request_id is a str, not {shown(request_id, 60)}")
    if not (0 < len(key) <= LONGEST_ID and key.isprintable()):
        raise ValueError(f"{shown(key, 80)} cannot be a request_id: use 1 to {LONGEST_ID} printable characters")
    return key


def fingerprint_of(operation: str, payload: object) -> str:
    """What binds a key to what was sent under it."""
    text = msgspec.json.encode((operation, payload), order="sorted")
    return blake2b(text, digest_size=16).hexdigest()
