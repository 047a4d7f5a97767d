"""Every place where an application's code is called: that it raised is told wherever somebody may be listening.

The places are those of `test_users_code.py`; a new one is held against this, too.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import structlog

from callboard import Notice, Runtime
from callboard.runtime.host import Host
from callboard.runtime.metrics import Metrics

from . import test_users_code as places

pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]
Place = Callable[[Callable[[], Any]], Awaitable[None]]

NOT_TOLD = {
    places.in_a_module_that_is_imported,  # `submit` raises it
    places.in_a_body_on_the_loop_with_a_task_group,  # told as the group that it is in
    places.in_a_processor_of_structlog,  # see below: it is the log itself that cannot tell
}
TOLD = [place for place in places.RAISE_IN if place not in NOT_TOLD]


class ShelfFell(Exception):  # noqa: N818 - it says what happened
    """What the application's code raises. Of a source of secrets no more is told than its name."""


def falls() -> None:
    raise ShelfFell


class Heard:
    """What was told by the runtimes of a place."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.trouble: list[Notice] = []
        self.metrics: list[Metrics] = []


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Heard:
    heard, undisturbed = Heard(), places.undisturbed

    @contextlib.asynccontextmanager
    async def listening(**settings: Any) -> AsyncIterator[tuple[Runtime, list[Notice]]]:
        async with undisturbed(**settings) as (runtime, told):
            events = runtime.events()
            yield runtime, told
        heard.events += [repr(event) async for event in events]
        heard.trouble += told
        heard.metrics.append(runtime.metrics())

    monkeypatch.setattr(places, "undisturbed", listening)
    return heard


@pytest.fixture
def nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The places look at what `on_trouble` is told; it is to be as if that were not set."""
    took = Host._took

    def told_all_the_same(host: Host, notice: Notice) -> bool:
        took(host, notice)
        return False

    monkeypatch.setattr(Host, "_took", told_all_the_same)


@pytest.fixture
def own_structlog(no_logs: object) -> Iterator[list[str]]:
    lines: list[str] = []

    def keep(_: Any, __: str, event: Any) -> Any:
        lines.append(repr(event))
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    yield lines
    structlog.reset_defaults()


@pytest.mark.parametrize("place", TOLD, ids=lambda place: place.__name__)
async def test_it_is_an_event_and_a_number(place: Place, heard: Heard) -> None:
    await place(falls)
    assert any("ShelfFell" in event for event in heard.events)
    counted = [
        *(notice for metrics in heard.metrics for notice in metrics.notices),
        *(key for metrics in heard.metrics for key in metrics.transitions if key[-1] in {"error", "critical"}),
    ]
    assert counted


@pytest.mark.parametrize("place", TOLD, ids=lambda place: place.__name__)
async def test_it_is_on_standard_error_where_nothing_is_configured(
    place: Place, no_logs: object, nobody_is_told: None, capsys: pytest.CaptureFixture[str]
) -> None:
    await place(falls)
    assert "ShelfFell" in capsys.readouterr().err


@pytest.mark.parametrize("place", TOLD, ids=lambda place: place.__name__)
async def test_it_is_a_line_of_logging(place: Place, no_logs: logging.Logger) -> None:
    lines: list[logging.LogRecord] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record)

    no_logs.addHandler(Keeps())
    await place(falls)
    assert [line for line in lines if line.levelno >= logging.WARNING and "ShelfFell" in line.getMessage()]


@pytest.mark.parametrize("place", TOLD, ids=lambda place: place.__name__)
async def test_it_is_a_line_of_structlog(place: Place, own_structlog: list[str]) -> None:
    await place(falls)
    assert any("ShelfFell" in line for line in own_structlog)


async def test_a_log_that_raises_is_told_to_all_others(
    heard: Heard, no_logs: object, capsys: pytest.CaptureFixture[str]
) -> None:
    await places.in_a_processor_of_structlog(falls)
    assert "ShelfFell" in capsys.readouterr().err
    (first, *_) = [notice for notice in heard.trouble if notice.event == "log_failed"]
    assert (first.severity, first.facts["times"]) == ("error", 1)
    assert heard.metrics[0].notices["log_failed"] > 1
    assert heard.metrics[0].unlogged >= heard.metrics[0].notices["log_failed"]


async def test_what_hears_of_trouble_and_raises_is_told_to_all_others(heard: Heard, no_logs: object) -> None:
    await places.in_what_is_told_of_trouble(falls)
    (told,) = [event for event in heard.events if "on_trouble_failed" in event]
    assert "on_trouble raised when it was told of hook_failed: ShelfFell" in told
    assert heard.metrics[0].notices["on_trouble_failed"] == 1
