"""The base of every entity's record, and the parts that several kinds of records share.

Rules:
- A record is never changed; `msgspec.structs.replace` makes the next one. So a failed turn leaves no partial
  change, and the journal's writer may encode a record while the loop goes on.
- Records hold facts, not objects: the journal stores these fields, and recovery reads them back. Data that can
  be derived from them (counts, queues, free slots) lives in the actors and is rebuilt.
- `key` is the entity's number, unique in its journal; `id` is its name for people. Times are UTC epoch seconds.
- `seq` counts the entity's transitions from 1 (its creation) without a gap; `epoch` is the seq at which it entered its
  present state. It shows that a timer of an earlier state is stale.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import msgspec

if TYPE_CHECKING:
    MaybeRaw = msgspec.Raw | None
else:
    MaybeRaw = msgspec.Raw  # msgspec cannot decode a union with Raw; the default None is never written


class UnreportedDecision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A decision or an end without a row in its lifecycle: the next row's metadata reports it."""

    event: str
    by: str | None = None  # None: no person decided it
    at: float
    reason: str | None = None
    entity_id: str | None = None  # if a part of the entity ended without a row: that part's id
    ended_as: str | None = None  # and the phase in which that part ended
    left_out: int = 0  # how many further ones are only counted


class Published(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """An entity's state in the lifecycle that it was given, besides its phase."""

    lifecycle: str
    state: str
    previous: str | None = None
    seq: int = 1  # of its published transitions
    untold: tuple[UnreportedDecision, ...] = ()


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The fields of every entity's record. Subclasses name their entity kind.

    `state` is the phase that its actor acts on. If the entity runs by a lifecycle that is not the runtime's own,
    `published` holds its state there, which people see and its transitions report.
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
    due_at: float | None = None  # when the present state's timed event fires; the timer is armed while this is set
    reason: str | None = None
    published: Published | None = None  # None: the runtime's own lifecycle
    untold: tuple[
        UnreportedDecision, ...
    ] = ()  # of its parts; an entity with the runtime's own lifecycle reports them by its next row

    @property
    def shown(self) -> str:
        """The state of the entity, as people see it."""
        return self.state if self.published is None else self.published.state

    @property
    def told(self) -> int:
        """The number of its last transition among those of the entity."""
        return self.seq if self.published is None else self.published.seq


class Decision(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A decision about a hold, or (by None) its expiry. `met`: the numbers of the clauses that it met."""

    verdict: str  # approved | rejected | expired
    at: float
    by: str | None = None
    reason: str | None = None
    met: tuple[int, ...] = ()


class CheckResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The result of one acceptance test. check: the test, as "file dist/app.whl" or "pytest -q"."""

    check: str
    passed: bool
    error: str | None = None
    exit_code: int | None = None
    duration_ms: int | None = None  # None: the check only looked at a file, or took too long


class Cancellation(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The progress of a graceful cancel. It is kept afterwards, and shows the results of the hooks."""

    deadline: float | None = None  # when all cancel hooks must have ended; None while the cancelled body still runs
    hook: int = 0  # the number of the running hook
    token: int = 0  # the fencing token of the call
    late: bool = False  # the hook took too long, and is being stopped
    failed: list[str] = []  # the errors of the hooks that failed
    left: str | None = None  # the hook or body that did not stop in time
    used: dict[str, Any] = {}  # what the stopped body used and left behind: metadata of the transition that ends it
