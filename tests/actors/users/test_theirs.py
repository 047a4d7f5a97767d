"""Errors of the application's code are told from interrupts by the user, and are shown safely."""

from __future__ import annotations

import _thread
import asyncio
import contextlib
import functools
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from tests.programs import killed_after
from tests.reliability.hostile import guests
from tests.waiting import LONGEST

from callboard.actors.user_code import (
    EscapedException,
    called,
    contained,
    from_terminal,
    kept,
    kind_name,
    message_of,
    shown,
    text_of,
    truth,
)
from callboard.runtime.engines.failures import describe


def own() -> None:
    raise KeyboardInterrupt


def passed_on() -> None:
    try:
        own()
    except KeyboardInterrupt:
        kept("cleaned up", 20)
        raise


def in_a_group() -> None:
    raise BaseExceptionGroup("g", [KeyboardInterrupt(), SystemExit()])


@pytest.mark.parametrize("function", [own, passed_on, in_a_group])
def test_an_interrupt_that_code_raises_is_its_own(function: Callable[[], None]) -> None:
    with pytest.raises(EscapedException, match=r"KeyboardInterrupt|BaseExceptionGroup"):
        called(function)


def at_the_terminal() -> None:
    signal.raise_signal(signal.SIGINT)


def in_the_middle_of_something() -> None:
    _thread.interrupt_main()
    for _ in range(1_000_000):
        pass


def passed_on_after_a_clean_up() -> None:
    try:
        at_the_terminal()
    except KeyboardInterrupt:
        kept("cleaned up", 20)
        raise


class Handler:
    """A handler as `asyncio.Runner` has one."""

    def handle(self, number: int, frame: FrameType | None, *, more: int) -> None:
        raise KeyboardInterrupt


@pytest.fixture(params=[None, signal.default_int_handler, functools.partial(Handler().handle, more=1)])
def _handler(request: pytest.FixtureRequest) -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    if request.param is not None:
        signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_handler")
@pytest.mark.parametrize("function", [at_the_terminal, in_the_middle_of_something, passed_on_after_a_clean_up])
def test_an_interrupt_of_the_terminal_goes_on(function: Callable[[], None]) -> None:
    with pytest.raises(KeyboardInterrupt) as raised:
        called(function)
    assert from_terminal(BaseExceptionGroup("g", [ValueError(), raised.value]))


def test_one_that_was_never_raised_is_nobodys() -> None:
    assert isinstance(contained(KeyboardInterrupt()), EscapedException)
    assert isinstance(contained(asyncio.CancelledError()), EscapedException)
    error = ValueError()
    assert contained(error) is error


@pytest.mark.parametrize("name", guests.ALL_ERRORS)
def test_every_error_can_be_told(name: str) -> None:
    with pytest.raises(BaseException) as raised:  # noqa: PT011 - that is the point
        guests.throw(name)
    for text in (message_of(raised.value), shown(raised.value), kind_name(raised.value)):
        assert type(text) is str
        assert 0 < len(text) < 700
        text.encode()


def test_a_group_is_told_with_what_it_is_made_of() -> None:
    group = ExceptionGroup("g", [ExceptionGroup("h", [KeyError("a")]), ValueError("b"), TimeoutError()])
    assert message_of(group) == "ExceptionGroup: g (3 sub-exceptions): KeyError: 'a'; ValueError: b; TimeoutError"
    assert message_of(ExceptionGroup("g", [ValueError(n) for n in range(9)])).endswith("ValueError: 4; and 4 more")


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt("mine"), GeneratorExit(), guests.Bare("x")])
def test_what_is_no_exception_is_shown_as_it_was_raised(error: BaseException) -> None:
    escaped = contained(error)
    assert isinstance(escaped, EscapedException)
    for told in (message_of, shown, kind_name, text_of):
        assert told(escaped) == told(error)
    assert describe(escaped) == describe(error)
    assert message_of(EscapedException("SystemExit: 3")) == "SystemExit: 3"  # the form of a copy without its cause


@pytest.mark.parametrize("name", guests.OBJECTS)
def test_every_object_can_be_shown(name: str) -> None:
    text = shown(guests.OBJECTS[name]())
    assert 0 < len(text) <= 300
    text.encode()


def test_what_is_neither_true_nor_false_raises_an_exception() -> None:
    with pytest.raises(EscapedException, match="in __bool__"):
        truth(guests.NoTruth())
    assert truth([1])


PROGRAM = """
import os, signal, sys, threading, time
import anyio
from callboard import Actor, Runtime, Task, Workstream

class Busy(Actor):
    def receive(self, message, ctx):
        strike()

def strike():
    print("ready", flush=True)
    time.sleep(60)

async def body():
    strike()

async def main():
    async with Runtime(drain_deadline=0.1) as runtime:
        if sys.argv[2] == "body":
            await runtime.submit(Workstream("w", tasks=[Task("t", run=body)]))
        else:
            runtime.spawn(Busy).tell("go")
        await anyio.sleep(60)

anyio.run(main, backend=sys.argv[1])
print("not reached")
"""


@pytest.mark.parametrize("where", ["body", "receive"])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_ctrl_c_ends_the_program_whatever_it_interrupts(backend: str, where: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(PROGRAM)
    program = subprocess.Popen(
        [sys.executable, str(file), backend, where], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with killed_after(program):
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGINT)
        end = time.monotonic() + LONGEST
        # asyncio defers the first signal, and two that come at once count as one
        while backend == "asyncio" and time.monotonic() < end:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.wait(timeout=1)
                break
            program.send_signal(signal.SIGINT)
        out, errors = program.communicate(timeout=LONGEST)
    assert "not reached" not in out
    assert "KeyboardInterrupt" in errors
    assert program.returncode != 0
