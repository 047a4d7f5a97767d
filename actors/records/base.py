"""What every entity's record has, and what several kinds of them share.

Rules:
- A record is never changed; `msgspec.structs.replace` makes the next one. So a turn that fails leaves nothing half
  done, and the journal's writer may encode a record while the loop goes on.
- Records hold facts, not objects: what is here is what the journal keeps and what recovery gets back. What can be
  derived from them (counts, queues, free slots) lives in the actors and is rebuilt.
- `key` is the entity's number, unique in its journal; `id` is its name for people. Times are UTC epoch seconds.
- `seq` counts the entity's transitions from 1 (its creation) without a gap; `epoch` is the seq at which it entered its
  present state, so that a timer armed in an earlier state is known to be stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import msgspec

if TYPE_CHECKING:
    MaybeRaw = msgspec.Raw | None
else:
    MaybeRaw = msgspec.Raw  # msgspec cannot decode a union with Raw; None is the default, which is never written


class Untold(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What somebody decided, or how it ended, where a lifecycle had no row for that: the next row tells it."""

    event: str
    by: str | None = None  # None: nobody, it came so
    at: float
    reason: str | None = None
    entity_id: str | None = None  # where it was about something inside of the entity that ended without a row
    ended_as: str | None = None  # where it was the end of that
    left_out: int = 0  # how many more there were beside it, which are only counted


class Published(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Where an entity stands in the lifecycle that it was given, beside the phase that it is in."""

    lifecycle: str
    state: str
    previous: str | None = None
    seq: int = 1  # of its published transitions
    untold: tuple[Untold, ...] = ()


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What every entity's record has. Subclasses name their entity kind.

    `state` is the phase that its actor acts on. Where it runs by a lifecycle that is not the runtime's own,
    `published` says where it stands there, and that is what people are shown, and what its transitions tell.
    """

    kind: ClassVar[str] = ""

    key: int
    id: str
    name: str
    state: str
    previous_state: str | None = None
    seq: int = 1
    epoch: int = 1
    run: int = 1
    created_at: float
    updated_at: float = 0.0
    started_at: float | None = None
    finished_at: float | None = None
    due_at: float | None = None  # when the present state's timed event fires; armed as long as it stands here
    reason: str | None = None
    published: Published | None = None  # None: by the runtime's own lifecycle
    untold: tuple[Untold, ...] = ()  # of what is in it, where it runs by that, and its own next row tells it

    @property
    def shown(self) -> str:
        """Its state as people are told of it."""
        return self.state if self.published is None else self.published.state

    @property
    def told(self) -> int:
        """The number of its last transition, among its own."""
        return self.seq if self.published is None else self.published.seq


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What somebody said to a hold, or (by nobody) that it expired. `met`: which clauses it met, by their numbers."""

    verdict: str  # approved | rejected | expired
    at: float
    by: str | None = None
    reason: str | None = None
    met: tuple[int, ...] = ()


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """What came of one acceptance test. check: what it is, as "file dist/app.whl" or "pytest -q"."""

    check: str
    passed: bool
    error: str | None = None
    exit_code: int | None = None
    duration_ms: int | None = None  # None: it was only looked, or it took too long


class Cancellation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """How far a graceful cancel is. Kept when it is over: it says what its hooks did."""

    deadline: float | None = None  # by when all cancel hooks must have ended; None while what ran has still to go
    hook: int = 0  # the number of the one that runs
    token: int = 0  # its fencing token
    late: bool = False  # it took too long, and was told to stop
    failed: list[str] = []  # what went wrong with those that failed
    left: str | None = None  # what did not stop in time
