"""How the runtime is: for people, for what restarts it, and for what collects its metrics.

Rules
-----
- Whether it lives and is ready may be asked without a token: it says nothing else.
- It is degraded while its journal cannot be written: it goes on by itself, and nobody is to restart it. It is not ready
  then, nor while it drains: nothing new is taken.
"""

from __future__ import annotations

from importlib.metadata import version

import msgspec
from litestar import Response, get

from ...observation.metric_definitions import SERIES
from ..http.access import PUBLIC
from ..http.context import Board, TheBoard
from ..http.problems import Problem

VERSION = version("callboard")


class HealthView(msgspec.Struct, frozen=True, kw_only=True):
    """status: ok, degraded or draining. reason, since (UTC epoch seconds): of the trouble. accepting: whether it takes
    anything new. backlog: transitions that are not durable yet.
    """

    status: str
    reason: str | None
    since: float | None
    accepting: bool
    backlog: int
    now: float
    version: str


class Word(msgspec.Struct, frozen=True):
    """One word for what only wants to know that."""

    status: str


class Sample(msgspec.Struct, frozen=True):
    """One number, and what it is of."""

    labels: dict[str, str]
    value: float


class MetricView(msgspec.Struct, frozen=True):
    """One metric. kind: counter (it only grows while the runtime is open) or gauge; unit: in the words of UCUM."""

    name: str
    text: str
    kind: str
    unit: str
    samples: list[Sample]


class MetricsView(msgspec.Struct, frozen=True):
    """Everything that the runtime counts; the names are those of docs/observation.md."""

    items: list[MetricView]


@get("/api/health", operation_id="get_health")
async def get_health(board: TheBoard) -> HealthView:
    """How the runtime is."""
    services = board.services
    health = services.health
    status = "degraded" if not health.ok or health.reason else "draining" if services.draining else "ok"
    return HealthView(
        status=status, reason=health.reason, since=health.since, accepting=_accepts(board),
        backlog=services.journal.backlog, now=services.now(), version=VERSION,
    )  # fmt: skip


@get("/health/live", operation_id="get_live", opt={"scope": PUBLIC})
async def get_live(board: TheBoard) -> Word:
    """Whether it lives: it is not to be restarted."""
    if not board.services.is_open:
        raise Problem(503, "closed", "the runtime has closed")
    return Word("ok")


@get("/health/ready", operation_id="get_ready", opt={"scope": PUBLIC})
async def get_ready(board: TheBoard) -> Word:
    """Whether it takes something new."""
    if not _accepts(board):
        raise Problem(503, "not-ready", "nothing new is taken now", headers={"Retry-After": "5"})
    return Word("ok")


def _accepts(board: Board) -> bool:
    services = board.services
    return services.is_open and services.health.ok and not services.draining


@get("/api/metrics", operation_id="get_metrics")
async def get_metrics(board: TheBoard) -> MetricsView:
    """What the runtime counts."""
    told = board.runtime.metrics()
    return MetricsView(
        [
            MetricView(
                series.name, series.text, "counter" if series.counts else "gauge", series.unit,
                [
                    Sample(dict(zip(series.labels, labels, strict=True)), number)
                    for labels, number in series.values(told).items()
                ],
            )
            for series in SERIES
        ]
    )  # fmt: skip


@get("/metrics", operation_id="get_prometheus", media_type="text/plain")
async def get_prometheus(board: TheBoard) -> Response[bytes]:
    """The same for Prometheus, where its client library is installed."""
    try:
        from prometheus_client import CollectorRegistry, generate_latest  # noqa: PLC0415 - an extra
        from prometheus_client.exposition import CONTENT_TYPE_LATEST  # noqa: PLC0415

        from ...collectors.prometheus import RuntimeCollector  # noqa: PLC0415
    except ModuleNotFoundError:
        raise Problem(
            404, "not-found", 'the library for Prometheus is not installed: "callboard[prometheus]"'
        ) from None
    registry = CollectorRegistry()
    registry.register(RuntimeCollector(board.runtime))
    return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST}, media_type="text/plain")


HANDLERS = [get_health, get_live, get_ready, get_metrics, get_prometheus]
