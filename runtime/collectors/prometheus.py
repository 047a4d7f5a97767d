"""A runtime's metrics for Prometheus: a collector to register. Needs the extra `prometheus`.

    REGISTRY.register(RuntimeCollector(runtime))

Rules
-----
- The collector keeps nothing: each scrape takes a snapshot (`Runtime.metrics`), in the scrape's thread.
- Before the runtime is entered, it exports no metrics. Names are in docs/observation.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from ..errors import RuntimeClosed
from ..observation.metric_definitions import SERIES
from ..observation.metrics import BOUNDS, Metrics

if TYPE_CHECKING:
    from ..runtime import Runtime


class RuntimeCollector(Collector):
    """Exports a runtime's metrics to Prometheus."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def collect(self) -> Iterator[Metric]:
        """Yield every metric, with its present value."""
        try:
            metrics = self._runtime.metrics()
        except RuntimeClosed:
            return
        for series in SERIES:
            kind = CounterMetricFamily if series.counts else GaugeMetricFamily
            family = kind(f"callboard_{series.name}", series.text, labels=series.labels)
            for labels, number in series.values(metrics).items():
                family.add_metric(list(labels), number)
            yield family
        yield _times(metrics)


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
