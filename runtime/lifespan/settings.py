"""What a runtime was given, checked: `Runtime` takes it, and `wiring.py` makes the parts of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, TypeVar

from ...actors.spec.model import Alert, Defaults, HealthChecks, Tool, Worker
from ...actors.spec.times import Duration, seconds
from ...actors.user_code import called, is_a, shown
from ...actors.users.strategy import Supervision
from ..dispatch.clock import Clock, Ids
from ..execution.outputs import Outputs, beside
from ..journal.contract import Journal
from ..journal.location import file_of, is_address
from ..text.secrets import Secrets

if TYPE_CHECKING:
    from ..engines.ray.cluster import RayCluster

T = TypeVar("T")

DRAIN_DEADLINE = 30.0
MOST_GIVEN = 10_000
"""Workers, and alerts, that a runtime is given."""
DATABASE_OUTPUTS = "callboard.output"
"""Where the output of commands goes, in the present folder, where the journal is in a database."""


@dataclass(frozen=True)
class Settings:
    """What a runtime was given. target: the journal, or where it is. Durations are in seconds."""

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
    """Refuse what is no journal, and settings of nodes where it has one owner. Raises TypeError, ValueError."""
    if not (journal is None or is_a(journal, (str, Path)) or _has_entries(journal)):
        raise TypeError(f"the journal is a path, a Journal or None, not {shown(journal, 60)}")
    if not is_address(journal) and (node is not None or lease is not None):
        raise ValueError(
            "node and lease are settings of a journal that several runtimes share, which is named by its address, "
            f"as postgresql://HOST/DATABASE; {'this one' if journal is None else repr(str(journal))} has one owner"
        )


def so_many(given: Iterable[T], what: str) -> list[T]:
    """All of what may be given by an iterator, which need not end. Raises ValueError for more than there may be."""
    found = list(islice(given, MOST_GIVEN + 1))
    if len(found) > MOST_GIVEN:
        raise ValueError(f"a runtime is given at most {MOST_GIVEN:,} {what}")
    return found


def _has_entries(journal: object) -> bool:
    """Whether something may be a journal: it has code of its own, which may raise whatever it likes."""
    try:
        return called(hasattr, journal, "append") and called(hasattr, journal, "flush")
    except Exception:
        return False


def taken_once(journal: str | Path | Journal | None) -> str | Path | Journal | None:
    """What is the journal, wherever the program goes: a file's path is taken now."""
    return file_of(journal) if isinstance(journal, str | Path) and not is_address(journal) else journal


def outputs_of(target: str | Path | Journal | None, outputs: str | Path | None) -> Outputs | None:
    """Where outputs go; None where nobody keeps them longer than the runtime."""
    if outputs is not None:
        return Outputs(file_of(outputs))
    if isinstance(target, Path):
        return Outputs(*beside(target))
    if isinstance(target, str):
        here = file_of("")
        return Outputs(here / DATABASE_OUTPUTS, root=here)
    return None


def span(name: str, value: Duration) -> float:
    """A duration of a runtime's settings in seconds. Raises ValueError for what is none."""
    try:
        return seconds(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from None
