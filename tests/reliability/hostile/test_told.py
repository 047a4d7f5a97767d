"""Every kind of failure of the application's code: it is reported at every place of reports, and kept.

Each of `WAYS` is checked at each of these places: standard error where nothing is configured, `logging`, structlog,
events, metrics, the journal, the command line and the board. The ways are the places of `test_users_code.py` (a new
place there is checked here, too) and `MORE`: an alert, a timed event of a machine, the start of a worker, a module that
cannot be imported any more at a start. A failure that cannot be reported at some place is in `NOT_TOLD`, or has a test
of its own, with the reason.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import httpx
import msgspec
import pytest
import structlog

from callboard import (
    Alert,
    Approval,
    Fire,
    HealthChecks,
    Machine,
    MachineActor,
    Notice,
    Runtime,
    State,
    Timed,
    Transition,
    Worker,
)
from callboard.runtime.cli import _app
from callboard.runtime.cli.command_errors import run_command
from callboard.runtime.journal.contract import Journal
from callboard.runtime.journal.memory import MemoryJournal
from callboard.runtime.journal.sqlite.journal import SqliteJournal
from callboard.runtime.journal.sqlite.reader import SqliteReader
from callboard.runtime.observation.metrics import Metrics
from callboard.runtime.observation.notices import Notices
from callboard.web import board

from . import guests
from . import test_users_code as places

pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]
Place = Callable[[Callable[[], Any]], Awaitable[None]]

NOT_TOLD = {
    places.in_a_module_that_is_imported,  # `submit` raises it in the caller
    places.in_a_body_on_the_loop_with_a_task_group,  # it is reported with its group
    places.in_a_processor_of_structlog,  # see below: here the log itself fails
}


# -- more ways --------------------------------------------------------------------------------------------------------

new_journal: Callable[[], Journal] = MemoryJournal
"""Makes the journal that two runtimes of a test use, one after the other."""


async def in_an_alert(act: places.Act) -> None:
    async def later() -> Any:
        return act()

    async def body() -> None:
        raise ValueError("which is to be told")

    for function in (places.plain(act), later):
        async with places.undisturbed() as (runtime, told):
            spec = msgspec.structs.replace(places.only("w", run=body), alerts=[Alert(run=function)])
            assert not (await (await runtime.submit(spec)).wait()).ok
            await places.until(lambda told=told: any(notice.event == "hook_failed" for notice in told))


class Limits(msgspec.Struct):
    """The facts of a machine that goes off by itself."""

    limit: float = 0.01


async def in_a_timed_event_of_a_machine(act: places.Act) -> None:
    def guard(facts: Any, payload: Any) -> Any:
        return act()

    rows = [Transition("OFF", "PRESS", "ON"), Transition("ON", "LAPSE", "OFF", guard)]
    lamp = Machine("lamp", "OFF", [State("OFF"), State("ON")], rows, endless=True)
    async with places.undisturbed() as (runtime, told):
        ref = runtime.spawn(MachineActor(lamp, Limits(), timed=[Timed("ON", "LAPSE", "limit")]), name="m")
        await ref.ask(Fire("PRESS"))
        await places.until(lambda: any(notice.event == "timed_event_refused" for notice in told))
        assert ref.state == "ON"


async def in_the_start_of_a_worker(act: places.Act) -> None:
    del act  # no code of the application's runs in it: that its process does not come up is enough
    health = HealthChecks(start_timeout=0.5)
    with tempfile.TemporaryDirectory() as folder:
        frozen = Path(folder, "python")
        frozen.write_text("#!/bin/sh\nkill -STOP $$\n")
        frozen.chmod(0o755)
        with mock.patch.object(sys, "executable", str(frozen)):
            async with places.undisturbed(health_checks=health) as (runtime, _):
                await runtime.start_worker(Worker("late", engine="process"))
                spec = places.only("w", run="tests.reliability.hostile.guests:gives", engine="process", on_loss="fail")
                outcome = await (await runtime.submit(spec)).wait()
                assert outcome.tasks["t"].lost_attempts == 1


async def in_a_module_that_is_imported_at_a_start(act: places.Act) -> None:
    journal, name = new_journal(), "tests.reliability.hostile.broken"
    guests.now = lambda: None  # type: ignore[attr-defined]
    async with places.undisturbed(journal=journal) as (runtime, _):
        spec = places.only("w", run=f"{name}:work", hold=Approval(), queue_timeout=0.05)
        job = await runtime.submit(spec, id="held")
        await places.until(lambda: job.task("t").record.state == "held")
    guests.now = act  # type: ignore[attr-defined]
    sys.modules.pop(name)
    async with places.undisturbed(journal=journal) as (runtime, _):
        job = await runtime.job("held")
        await job.task("t").approve(by="ana")
        outcome = await job.wait()
        assert outcome.tasks["t"].state == "failed"


MORE: list[Place] = [
    in_an_alert, in_a_timed_event_of_a_machine, in_the_start_of_a_worker, in_a_module_that_is_imported_at_a_start,
]  # fmt: skip
WAYS = [*(place for place in places.RAISE_IN if place not in NOT_TOLD), *MORE]
SIGNS: dict[Place, str] = {in_the_start_of_a_worker: "process did not start within"}


WITHOUT_A_TRACEBACK: set[Place] = {
    places.in_a_source_of_secrets,  # only its name is reported
    in_the_start_of_a_worker,  # in which nothing of the application's raises
    in_a_module_that_is_imported_at_a_start,  # the reason has the module's name, and its error
}
"""Ways of which the journal does not say where it was raised."""


def sign_of(place: Place) -> str:
    """The text that a report about that place must contain."""
    return SIGNS.get(place, "ShelfFell")


# -- where it is told -------------------------------------------------------------------------------------------------


class ShelfFell(Exception):  # noqa: N818 - it says what happened
    """The error of the application's code. Of a source of secrets only the name is reported."""


def falls() -> None:
    raise ShelfFell


class Heard:
    """The reports of the runtimes of a place."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.trouble: list[Notice] = []
        self.metrics: list[Metrics] = []
        self.journals: list[Path] = []  # the files of those that have been left
        self.board: list[str] = []  # the answers of the board before the runtimes are left


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


class AnyFunctions(SqliteJournal):
    """A journal's file that accepts functions which no restart could find again: those of a test."""

    durable_medium = False


@pytest.fixture
def filed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Heard:
    """As `heard`, with a journal in a file for each runtime."""
    heard, undisturbed = Heard(), places.undisturbed

    def journal() -> Journal:
        heard.journals.append(tmp_path / f"state-{len(heard.journals)}.db")
        return AnyFunctions(heard.journals[-1])

    @contextlib.asynccontextmanager
    async def filing(**settings: Any) -> AsyncIterator[tuple[Runtime, list[Notice]]]:
        given = settings.pop("journal", None)
        again = journal() if given is None else AnyFunctions(heard.journals[-1])  # which is opened once
        async with undisturbed(journal=again, **settings) as (runtime, told):
            yield runtime, told
            await runtime._services.settled(20)
            heard.board += await _on_the_board(runtime)

    monkeypatch.setattr(places, "undisturbed", filing)
    monkeypatch.setitem(globals(), "new_journal", journal)
    return heard


async def _on_the_board(runtime: Runtime) -> list[str]:
    transport = httpx.ASGITransport(app=board(runtime))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8470") as client:
        paths = ("/api/notices?limit=500", "/api/transitions?limit=500")
        return [(await client.get(path)).raise_for_status().text for path in paths]


@pytest.fixture
def nobody_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let notices count as not taken by `on_trouble`, although the places read them there."""
    took = Notices._took

    def told_all_the_same(notices: Notices, notice: Notice) -> bool:
        took(notices, notice)
        return False

    monkeypatch.setattr(Notices, "_took", told_all_the_same)


@pytest.fixture
def own_structlog(no_logs: object) -> Iterator[list[str]]:
    lines: list[str] = []

    def keep(_: Any, __: str, event: Any) -> Any:
        lines.append(repr(event))
        raise structlog.DropEvent

    structlog.configure(processors=[keep])
    yield lines
    structlog.reset_defaults()


@pytest.mark.parametrize("place", WAYS, ids=lambda place: place.__name__)
async def test_it_is_an_event_and_a_number(place: Place, heard: Heard) -> None:
    await place(falls)
    assert any(sign_of(place) in event for event in heard.events)
    counted = [
        *(notice for metrics in heard.metrics for notice in metrics.notices),
        *(key for metrics in heard.metrics for key in metrics.transitions if key[-1] in {"error", "critical"}),
    ]
    assert counted


@pytest.mark.parametrize("place", WAYS, ids=lambda place: place.__name__)
async def test_it_is_on_standard_error_where_nothing_is_configured(
    place: Place, no_logs: object, nobody_is_told: None, capsys: pytest.CaptureFixture[str]
) -> None:
    await place(falls)
    assert sign_of(place) in capsys.readouterr().err


@pytest.mark.parametrize("place", WAYS, ids=lambda place: place.__name__)
async def test_it_is_a_line_of_logging(place: Place, no_logs: logging.Logger) -> None:
    lines: list[logging.LogRecord] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record)

    no_logs.addHandler(Keeps())
    await place(falls)
    assert [line for line in lines if line.levelno >= logging.WARNING and sign_of(place) in line.getMessage()]


@pytest.mark.parametrize("place", WAYS, ids=lambda place: place.__name__)
async def test_it_is_a_line_of_structlog(place: Place, own_structlog: list[str]) -> None:
    await place(falls)
    assert any(sign_of(place) in line for line in own_structlog)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"])  # as the board has it
@pytest.mark.parametrize("place", WAYS, ids=lambda place: place.__name__)
async def test_it_is_in_the_journal_told_by_the_command_line_and_on_the_board(
    place: Place, filed: Heard, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await place(falls)
    sign = sign_of(place)
    assert any(sign in answered for answered in filed.board)
    for file in dict.fromkeys(filed.journals):
        kept = [text for text in _kept(file) if sign in text]
        assert kept, file
        assert place in WITHOUT_A_TRACEBACK or any("    raise ShelfFell" in text for text in kept), kept
        capsys.readouterr()
        for command in ("notices", "history"):
            monkeypatch.setattr(sys, "argv", ["callboard", command, "--journal", str(file), "--json"])
            assert run_command(_app) == 0
        assert sign in capsys.readouterr().out


def _kept(file: Path) -> list[str]:
    with contextlib.closing(SqliteReader(file)) as reader:
        return [*map(repr, reader.notices(limit=1_000)), *map(repr, reader.transitions())]


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"])
async def test_a_log_that_raises_is_in_the_journal_and_on_the_board(filed: Heard, no_logs: object) -> None:
    await places.in_a_processor_of_structlog(falls)
    assert any("ShelfFell" in answered for answered in filed.board)
    (file,) = filed.journals
    assert [text for text in _kept(file) if "log_failed" in text and "ShelfFell" in text]


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
    assert "on_trouble raised at the notice hook_failed: ShelfFell" in told
    assert heard.metrics[0].notices["on_trouble_failed"] == 1
