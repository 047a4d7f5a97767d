"""The metrics that a runtime exports, in one table for all kinds of collectors.

| column | what |
| --- | --- |
| name | its name, under the prefix `callboard`, in the form of each kind of collector |
| text | what it means |
| counts | true: it only grows (a counter); false: a present value (a gauge) |
| unit | in UCUM's notation: `s`, or the thing counted, in braces |
| labels | the names of its labels; empty: one number |
| values | the numbers in a snapshot, by the values of the labels |

Time in a state is exported separately (`Metrics.states`): some collectors have histograms for it, others do not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter

import msgspec

from .metrics import Metrics

BREAKER_STATES = ("closed", "half_open", "open")
Values = Mapping[tuple[str, ...], float]


class Series(msgspec.Struct, frozen=True):
    """One metric. See the module."""

    name: str
    text: str
    counts: bool
    unit: str
    labels: tuple[str, ...]
    values: Callable[[Metrics], Values]


def _one(name: str, text: str, field: str, unit: str, *, counts: bool = True) -> Series:
    number = attrgetter(field)
    return Series(name, text, counts, unit, (), lambda told: {(): number(told)})


def _transitions(told: Metrics) -> Values:
    return {(kind, source or "", *rest): number for (kind, source, *rest), number in told.transitions.items()}


def _breakers(told: Metrics) -> Values:
    return {(tool, each): float(state == each) for tool, state in told.breakers.items() for each in BREAKER_STATES}


def _by_engine(field: str) -> Callable[[Metrics], Values]:
    slots = attrgetter(field)
    return lambda told: {(engine,): number for engine, number in slots(told).items()}


def _notices(told: Metrics) -> Values:
    return {(event,): number for event, number in told.notices.items()}


def _dead_letters(told: Metrics) -> Values:
    return {(reason,): number for reason, number in told.dead_letters.items()}


def _lease(told: Metrics) -> Values:
    return {} if told.lease_left is None else {(): told.lease_left}


SERIES: tuple[Series, ...] = (
    Series(
        "transitions", "Transitions taken.", True, "{transition}",
        ("kind", "from_state", "to_state", "severity"), _transitions,
    ),
    Series(
        "rejected_transitions", "Commands that a state did not allow.", True, "{command}",
        ("machine", "state", "event"), attrgetter("rejected"),
    ),
    _one("stale_messages", "Messages that were refused, since their fencing token was old.", "stale", "{message}"),
    _one("requests", "Commands that came with a request_id.", "requests", "{command}"),
    _one("request_hits", "Of these, commands that got a kept reply.", "request_hits", "{command}"),
    _one("journal_commits", "Batches committed.", "commits", "{batch}"),
    _one("journal_transitions", "Transitions committed.", "committed", "{transition}"),
    _one("journal_commit_seconds", "Seconds spent committing.", "commit_seconds", "s"),
    _one("timers_fired", "Timers fired.", "timers_fired", "{timer}"),
    _one("timer_late_seconds", "Seconds by which timers fired late, added up.", "timers_late", "s"),
    _one("hooks_failed", "Hooks that failed.", "failed_hooks", "{hook}"),
    _one("log_lines_lost", "Lines that the application's log refused.", "unlogged", "{line}"),
    _one("actors_failed", "Failures of users' actors.", "actors_failed", "{failure}"),
    _one("actors_restarted", "Restarts of users' actors.", "actors_restarted", "{restart}"),
    _one("actors_stopped", "Users' actors that were stopped after a failure.", "actors_stopped", "{actor}"),
    Series("notices", "Notices emitted.", True, "{notice}", ("event",), _notices),
    Series("dead_letters", "Messages to actors that no actor handled.", True, "{message}", ("reason",), _dead_letters),
    _one("jobs_taken_over", "Jobs of other nodes that this one has taken over.", "jobs_taken", "{job}"),
    _one("nodes_fenced", "Other nodes that were fenced, as far as this node has seen.", "nodes_fenced", "{node}"),
    _one("nodes", "Nodes of the journal that are alive, with this one.", "nodes", "{node}", counts=False),
    Series("lease_left_seconds", "Seconds until this node's lease runs out.", False, "s", (), _lease),
    _one("journal_slowest_commit_seconds", "The slowest commit so far.", "slowest_commit", "s", counts=False),
    _one("timer_latest_seconds", "The longest delay of a timer.", "latest_timer", "s", counts=False),
    _one("journal_backlog", "Transitions that are not committed yet.", "backlog", "{transition}", counts=False),
    _one("mailbox_depth", "Messages that wait for the lifecycle actors.", "inbox", "{message}", counts=False),
    _one("actors_ready", "Actors with messages in their mailbox.", "ready", "{actor}", counts=False),
    _one("events_left", "Events in the inbox for absent machines.", "events_left", "{event}", counts=False),
    Series("breaker_state", "1 for the present state, 0 for others.", False, "1", ("tool", "state"), _breakers),
    Series(
        "workers", "Workers, by engine and state.", False, "{worker}", ("engine", "state"), attrgetter("workers")
    ),
    Series(
        "slots", "Attempts that workers could run at once.", False, "{attempt}", ("engine",), _by_engine("slots")
    ),
    Series(
        "slots_used", "Attempts that occupy a slot.", False, "{attempt}", ("engine",), _by_engine("slots_used")
    ),
    Series(
        "tool_invocations", "Attempts, and tries of steps, that began with a tool.", True, "{attempt}", ("tool",),
        lambda told: {(tool,): number for tool, number in told.tool_invocations.items()},
    ),
    Series(
        "steps", "Durable steps of bodies that ended.", True, "{step}", ("name", "state"), attrgetter("steps"),
    ),
    Series(
        "tests", "Acceptance tests that have ended.", True, "{test}", ("result",),
        lambda told: {("passed",): told.tests_passed, ("failed",): told.tests_failed},
    ),
    Series(
        "cpu_seconds", "CPU seconds of commands and of bodies in worker processes that have ended.", True, "s",
        ("engine",), _by_engine("cpu_seconds"),
    ),
    Series(
        "peak_memory_bytes", "The most memory that one command or worker process used.", False, "By", ("engine",),
        _by_engine("peak_memory_bytes"),
    ),
)  # fmt: skip
