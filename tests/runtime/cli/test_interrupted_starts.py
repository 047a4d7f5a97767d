"""Signals at each instant of a start: any number of them at any time ends the program.

They are sent at a place in the code and not at a time, and nothing goes on there until they have been heard.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import anyio
import pytest

from callboard import Runtime
from callboard.runtime.cli.session import Session
from callboard.runtime.lifespan.opening import Lifespan
from callboard.runtime.lifespan.wiring import Wiring
from callboard.runtime.web.http.serve import _Server

from .conftest import CommandResult

Cli = Callable[..., CommandResult]
HELD = """
name = "held"
[[tasks]]
name = "deploy"
command = "true"
shell = true
hold = {}
"""
LIMIT = 60
"""Seconds after which a program counts as hanging."""
MADE: tuple[type, str] = (Runtime, "__init__")
COMING = [MADE, (Lifespan, "_enter"), (Wiring, "catch_up"), (Session, "_attend")]
SERVING = [*COMING, (_Server, "startup"), (_Server, "main_loop")]
RUNNING = [("run", place) for place in [*COMING, (Session, "wait")]] + [("resume", (Wiring, "catch_up"))]


class Sender:
    """Sends so many signals at one place of the code, once, and waits until they were received and handled."""

    def __init__(self, patch: pytest.MonkeyPatch, place: tuple[type, str], count: int) -> None:
        self._left_to_send = count
        self._count = count
        self._session: Session | None = None
        self.left: list[int] = []  # the exit codes that it would have left at once with
        patch.setattr(os, "_exit", self.left.append)
        owner, name = place
        patch.setattr(owner, name, self._sending(getattr(owner, name)))
        patch.setattr(Session, "run", self._noting(Session.run))

    def _send(self) -> None:
        while self._left_to_send:
            self._left_to_send -= 1
            signal.raise_signal(signal.SIGTERM)

    def _sending(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def sends(*args: Any, **options: Any) -> Any:
            self._send()
            return real(*args, **options)

        async def sends_and_waits(*args: Any, **options: Any) -> Any:
            if self._left_to_send:
                self._send()
                await self._heard()
            return await real(*args, **options)

        return sends if real.__name__ == "__init__" else sends_and_waits

    def _noting(self, real: Callable[..., Any]) -> Callable[..., Any]:
        async def noting(session: Session, *args: Any) -> int:
            self._session = session
            code: int = await real(session, *args)
            return code

        return noting

    async def _heard(self) -> None:
        assert self._session is not None
        while self._session._interrupts < self._count:
            await anyio.lowlevel.checkpoint()
        if self._session._runtime is not None:  # the signals have arrived, and were handled
            await self._session._over.wait()
            await anyio.wait_all_tasks_blocked()


@pytest.fixture(autouse=True)
def limit() -> Iterator[None]:
    """A program that does not end fails its test."""

    def over(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise TimeoutError("it does not end")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def names(places: Iterable[tuple[type, str]]) -> list[str]:
    return [f"{owner.__name__}.{name}" for owner, name in places]


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("place", SERVING, ids=names(SERVING))
def test_a_server_that_is_stopped_while_it_starts_ends(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, place: tuple[type, str], count: int
) -> None:
    sender = Sender(monkeypatch, place, count)
    result = cli("serve", "--port", "0")
    assert (result.code, sender.left) == (0, [130] * (count == 3))
    assert "nothing new starts" in result.err
    assert result.out.endswith("continue at the next start\n")


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize(("command", "place"), RUNNING, ids=names(place for _, place in RUNNING))
def test_a_run_that_is_stopped_while_it_starts_ends_and_goes_on_at_the_next_start(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str, place: tuple[type, str], count: int
) -> None:
    Path("held.toml").write_text(HELD)
    begun = ["run", "held.toml", "--id", "j1", "--plain"]
    if command == "resume":
        with monkeypatch.context() as patch:
            Sender(patch, MADE, 1)
            assert cli(*begun).code == 130
        begun = ["resume", "--plain"]
    sender = Sender(monkeypatch, place, count)
    result = cli(*begun)
    assert (result.code, sender.left) == (130, [130] * (count == 3))
    assert "job j1 is unfinished" in result.out
    assert cli("check").code == 0
