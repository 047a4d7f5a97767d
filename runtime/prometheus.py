"""A runtime's metrics for Prometheus: a collector to register. Needs the extra `prometheus`.

    REGISTRY.register(RuntimeCollector(runtime))

Rules
-----
- Nothing is kept here: each scrape takes a snapshot (`Runtime.metrics`), in whatever thread it comes.
- Before the runtime was entered there is nothing to tell, and nothing is told. Names are in docs/observation.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from .handles import RuntimeClosed
from .metrics import BOUNDS, Metrics

if TYPE_CHECKING:
    from .runtime import Runtime

_PLAIN: tuple[tuple[type[CounterMetricFamily | GaugeMetricFamily], str, str, str], ...] = (
    (CounterMetricFamily, "stale_messages", "Messages under an old fencing token, refused.", "stale"),
    (CounterMetricFamily, "requests", "Commands that came with a request_id.", "requests"),
    (CounterMetricFamily, "request_hits", "Of those, answered from what is kept.", "request_hits"),
    (CounterMetricFamily, "journal_commits", "Batches committed.", "commits"),
    (CounterMetricFamily, "journal_transitions", "Transitions committed.", "committed"),
    (CounterMetricFamily, "journal_commit_seconds", "Seconds spent committing.", "commit_seconds"),
    (CounterMetricFamily, "timers_fired", "Timers fired.", "timers_fired"),
    (CounterMetricFamily, "timer_late_seconds", "Seconds that the loop was late for its timers.", "timers_late"),
    (CounterMetricFamily, "hooks_failed", "Hooks that failed.", "failed_hooks"),
    (CounterMetricFamily, "log_lines_lost", "Lines that the application's log would not take.", "unlogged"),
    (GaugeMetricFamily, "journal_slowest_commit_seconds", "The slowest commit so far.", "slowest_commit"),
    (GaugeMetricFamily, "timer_latest_seconds", "The most that the loop was late for a timer.", "latest_timer"),
    (GaugeMetricFamily, "journal_backlog", "Transitions that are not durable yet.", "backlog"),
    (GaugeMetricFamily, "mailbox_depth", "Messages that wait for the lifecycle actors.", "inbox"),
    (GaugeMetricFamily, "actors_ready", "Actors that have mail.", "ready"),
)


class RuntimeCollector(Collector):
    """Tells Prometheus of a runtime."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """Every metric, now."""
        try:
            told = self._runtime.metrics()
        except RuntimeClosed:
            return
        for family, name, text, field in _PLAIN:
            yield family(f"callboard_{name}", text, value=getattr(told, field))
        yield from _transitions(told)
        yield _times(told)
        yield from _present(told)


def _transitions(told: Metrics) -> Iterator[Metric]:
    taken = CounterMetricFamily(
        "callboard_transitions", "Transitions taken.", labels=["kind", "from_state", "to_state", "severity"]
    )
    for (kind, source, target, severity), number in told.transitions.items():
        taken.add_metric([kind, source or "", target, severity], number)
    yield taken
    rejected = CounterMetricFamily(
        "callboard_rejected_transitions", "Commands that a state did not allow.", labels=["machine", "state", "event"]
    )
    for labels, number in told.rejected.items():
        rejected.add_metric(list(labels), number)
    yield rejected


def _times(told: Metrics) -> Metric:
    spent = HistogramMetricFamily(
        "callboard_state_seconds", "How long entities were in a state that they left.", labels=["kind", "state"]
    )
    for (kind, state), one in told.states.items():
        if one.timed:
            sums = [sum(one.classes[: place + 1]) for place in range(len(one.classes))]
            bounds = [*map(str, BOUNDS), "+Inf"]
            spent.add_metric([kind, state], list(zip(bounds, sums, strict=True)), one.seconds)
    return spent


def _present(told: Metrics) -> Iterator[Metric]:
    breakers = GaugeMetricFamily("callboard_breaker_state", "1 for the state it is in.", labels=["tool", "state"])
    for tool, state in told.breakers.items():
        for each in ("closed", "half_open", "open"):
            breakers.add_metric([tool, each], float(state == each))
    yield breakers
    workers = GaugeMetricFamily("callboard_workers", "Workers, by engine and state.", labels=["engine", "state"])
    for labels, number in told.workers.items():
        workers.add_metric(list(labels), number)
    yield workers
    for name, text, slots in (
        ("slots", "Attempts that workers could run at once.", told.slots),
        ("slots_used", "Attempts that occupy a slot.", told.slots_used),
    ):
        family = GaugeMetricFamily(f"callboard_{name}", text, labels=["engine"])
        for engine, number in slots.items():
            family.add_metric([engine], number)
        yield family
