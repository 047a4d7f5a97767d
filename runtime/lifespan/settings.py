"""The checked settings of a runtime: from the arguments of `Runtime`, for the parts that `wiring.py` makes."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ...actors.spec.lifecycles import Lifecycles
from ...actors.spec.model import Alert, Defaults, HealthChecks, Tool, Worker, Workstream
from ...actors.spec.validate import SpecificationError, examined
from ...actors.times import Duration, seconds
from ...actors.user_code import called, is_a, shown
from ...actors.users.strategy import Supervision
from ...actors.workers.tool_limits import RUNTIME
from ..dispatch.clock import Clock, Ids
from ..execution.outputs import Outputs, beside
from ..handles.workers import default_workers
from ..journal.contract import Journal
from ..journal.location import file_of, is_address
from ..text.secrets import Secrets

if TYPE_CHECKING:
    from ..engines.ray.cluster import RayCluster

T = TypeVar("T")

DRAIN_DEADLINE = 30.0
MOST_GIVEN = 10_000
"""The most workers, and the most alerts, that a runtime accepts."""
DATABASE_OUTPUTS = "callboard.output"
"""The folder for the output of commands if the journal is in a database, in the current folder."""

SETTINGS_OF = "the runtime's settings"
"""The name in errors of the settings that are checked like those of a workstream."""
_KINDS: dict[str, tuple[type | tuple[str, ...], str]] = {
    "workers": (("__iter__",), "a list of Worker"),
    "health_checks": (HealthChecks, "a HealthChecks"),
    "secrets": (("__call__", "get"), "a mapping, a plain function of a name"),
    "supervision": (Supervision, "a Supervision"),
    "clock": (("monotonic",), "a clock with the methods monotonic() and time()"),
    "random": (("random",), "a random.Random"),
    "ids": (("new",), "a source of ids with the method new()"),
}
"""The class of a setting, or methods of which it must have one; and how an error names this."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The settings of one runtime. target: the journal, or its path or address. Durations are in seconds."""

    target: str | Path | Journal | None
    node: str | None
    lease: float | None
    workers: tuple[Worker, ...]
    defaults: Defaults
    tools: dict[str, Tool]
    alerts: list[Alert]
    health_checks: HealthChecks
    jsonl: Path | None
    outputs: Outputs | None
    secrets: Secrets
    drain_deadline: float
    keep_requests: float
    supervision: Supervision | None
    ray: RayCluster | str | None
    signals: bool
    clock: Clock
    random: Random
    ids: Ids


def check_journal(journal: object, node: str | None, lease: Duration | None) -> None:
    """Check that this is a journal, and that `node` and `lease` are set only for a shared one.

    Raises TypeError, ValueError.
    """
    if not (journal is None or is_a(journal, (str, Path)) or (_has(journal, "append") and _has(journal, "flush"))):
        raise TypeError(f"the journal is a path, a Journal or None, not {shown(journal, 60)}")
    if not is_address(journal) and (node is not None or lease is not None):
        raise ValueError(
            "node and lease are settings of a journal that several runtimes share, which is named by its address, "
            f"as postgresql://HOST/DATABASE; {'this one' if journal is None else repr(str(journal))} has one owner"
        )


def check_kinds(**given: object) -> None:
    """Check that each of these settings is None, or of its kind in `_KINDS`. Raises TypeError."""
    for name, value in given.items():
        wanted, words = _KINDS[name]
        suits = is_a(value, wanted) if isinstance(wanted, type) else any(_has(value, method) for method in wanted)
        if value is not None and not suits:
            raise TypeError(f"{name} is {words} or None, not {shown(value, 60)}")


def workers_of(given: Iterable[Worker] | None) -> tuple[Worker, ...]:
    """Return the workers, the usual ones for None. Raises TypeError for another object, ValueError for too many."""
    if given is None:
        return default_workers()
    workers = so_many(given, "workers")
    for index, worker in enumerate(workers):
        if not is_a(worker, Worker):
            raise TypeError(f"workers[{index}] is a Worker, not {shown(worker, 60)}")
    return tuple(workers)


def defaults_of(given: Defaults | None) -> Defaults:
    """Return the defaults, made of a table if they are one, as those of a workstream. Raises SpecificationError."""
    if given is None:
        return Defaults()
    said, found = examined(Workstream(RUNTIME, defaults=given), bodies=None, lifecycles=Lifecycles())
    if found:
        raise SpecificationError(found, SETTINGS_OF)
    return said.defaults


def so_many(given: Iterable[T], what: str) -> list[T]:
    """Return all items of an iterable, which may be endless. Raises ValueError for more than `MOST_GIVEN`."""
    found = list(islice(given, MOST_GIVEN + 1))
    if len(found) > MOST_GIVEN:
        raise ValueError(f"a runtime takes at most {MOST_GIVEN:,} {what}")
    return found


def _has(value: object, method: str) -> bool:
    """Whether an object has that method. It is a user's object, so its code may raise anything."""
    try:
        return called(hasattr, value, method)
    except Exception:
        return False


def taken_once(journal: str | Path | Journal | None) -> str | Path | Journal | None:
    """Return the journal with an absolute path, so that a later change of the current folder does not move it."""
    return file_of(journal) if isinstance(journal, str | Path) and not is_address(journal) else journal


def outputs_of(target: str | Path | Journal | None, outputs: str | Path | None) -> Outputs | None:
    """Return the files for outputs; None if they are deleted when the runtime closes."""
    if outputs is not None:
        return Outputs(file_of(outputs))
    if isinstance(target, Path):
        return Outputs(*beside(target))
    if isinstance(target, str):
        here = file_of("")
        return Outputs(here / DATABASE_OUTPUTS, root=here)
    return None


def lease_in(given: Duration | None) -> float | None:
    """Return a node's lease in seconds. Raises ValueError if it is no duration, or no possible lease."""
    if given is None:
        return None
    from ..journal.cluster import lease_of  # noqa: PLC0415 - only among nodes

    return lease_of(span("lease", given))


def span(name: str, value: Duration) -> float:
    """Return a duration of a runtime's settings in seconds. Raises ValueError if it is no duration."""
    try:
        return seconds(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None
