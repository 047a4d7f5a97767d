"""The engines' small parts: checked values, described failures, signatures, kept output."""

from __future__ import annotations

import functools
import random
import socket
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any

import pytest

from callboard.actors.messages.errors import Permanent, RetryAfter
from callboard.runtime.engines.command.output import Output, OutputUnwritable
from callboard.runtime.engines.context import TaskContext
from callboard.runtime.engines.failures import describe
from callboard.runtime.functions.signatures import is_async, takes_context
from callboard.runtime.text.secrets import Mask
from callboard.runtime.text.tracebacks import clean
from callboard.runtime.values import NotSerialisable, checked

# -- values --


class Colour(StrEnum):
    RED = "red"


class Level(IntEnum):
    HIGH = 3


class Special(dict[str, Any]):
    pass


def test_values_become_plain_copies() -> None:
    inner = [1, 2.5, None, True, "é", Colour.RED, Level.HIGH, -(2**63), 2**63 - 1]
    value = Special(a=inner, b=("x",), c={})
    copy = checked(value)
    assert copy == {"a": [1, 2.5, None, True, "é", "red", 3, -(2**63), 2**63 - 1], "b": ["x"], "c": {}}
    assert type(copy) is dict
    assert [type(one) for one in copy["a"][5:7]] == [str, int]
    inner.append("later")
    assert len(copy["a"]) == 9


def test_values_that_contain_themselves_are_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(NotSerialisable, match="nested deeper"):
        checked(loop)


# -- failures --


@pytest.mark.parametrize(
    ("error", "category"),
    [
        (ConnectionRefusedError("x"), "transient"),
        (TimeoutError(), "transient"),
        (RetryAfter(1), "transient"),
        (OSError(28, "No space left on device"), "resources"),
        (socket.gaierror(-3, "Temporary failure in name resolution"), "transient"),
        (OSError("other"), "unknown"),
        (ValueError("x"), "unknown"),
        (SyntaxError("x"), "permanent"),
        (ModuleNotFoundError("x"), "permanent"),
        (TypeError("x"), "permanent"),
        (PermissionError("x"), "permanent"),
        (Permanent("x"), "permanent"),
        (ExceptionGroup("g", [TimeoutError(), ConnectionError()]), "transient"),
        (ExceptionGroup("g", [TimeoutError(), ValueError()]), "unknown"),
        (ExceptionGroup("g", [TimeoutError(), ExceptionGroup("h", [TypeError()])]), "permanent"),
    ],
    ids=repr,
)
def test_categories(error: BaseException, category: str) -> None:
    info = describe(error)
    assert info.category == category
    assert info.permanent == isinstance(error, Permanent)


def test_groups_are_what_their_members_are() -> None:
    group = ExceptionGroup("g", [RetryAfter(3), ExceptionGroup("h", [RetryAfter(9), ValueError()])])
    assert describe(group).retry_after == 9
    assert describe(ExceptionGroup("g", [ValueError(), Permanent("p")])).permanent


def test_an_error_is_all_that_its_class_derives_from_and_a_group_what_all_in_it_are() -> None:
    class RefusedError(ConnectionRefusedError):
        pass

    RefusedError.__qualname__ = "RefusedError"
    assert describe(RefusedError()).kinds == [
        f"{__name__}.RefusedError", "ConnectionRefusedError", "ConnectionError", "OSError", "Exception",
        "BaseException",
    ]  # fmt: skip
    group = describe(ExceptionGroup("g", [KeyError(1), ExceptionGroup("h", [IndexError(2)])]))
    assert {"ExceptionGroup", "LookupError"} <= set(group.kinds)
    assert "KeyError" not in group.kinds


def test_a_group_of_one_error_is_recorded_as_that_error() -> None:
    info = describe(ExceptionGroup("unhandled errors", [ExceptionGroup("h", [KeyError("no such city")])]))
    assert (info.type, info.message, info.leaves) == ("KeyError", "'no such city'", ())
    assert "ExceptionGroup: unhandled errors (1 sub-exception)" in info.traceback


def test_a_group_is_recorded_by_all_that_it_is_made_of_in_whatever_order_it_came() -> None:
    inner = ExceptionGroup("h", [TimeoutError("slow"), ValueError("b"), ValueError("c")])
    info = describe(ExceptionGroup("3 of 5 failed", [inner, KeyError("a")]))
    assert info.type == "KeyError, TimeoutError, ValueError"
    assert info.message == (
        "3 of 5 failed (2 sub-exceptions): KeyError: 'a'; TimeoutError: slow; ValueError: b; ValueError: c"
    )
    assert [(leaf[0], leaf[-1]) for leaf in info.leaves] == [
        ("TimeoutError", "transient"), ("ValueError", "unknown"), ("ValueError", "unknown"), ("KeyError", "unknown"),
    ]  # fmt: skip
    other = describe(ExceptionGroup("3 of 5 failed", [KeyError("a"), inner]))
    assert (other.type, other.message) == (info.type, info.message)


def test_what_is_recorded_of_a_large_group_is_bounded_and_holds_no_secrets() -> None:
    many = [type(f"Odd{n}Error", (Exception,), {})("hush" + "x" * 1_000) for n in range(1_000)]
    info = describe(ExceptionGroup("g", many), Mask(["hushx"]))
    assert info.type.endswith(", and 45 more")
    assert len(info.type) <= 500
    assert "and 995 more" in info.message
    assert len(info.message) <= 2_000
    assert "hush" not in info.message
    assert len(info.leaves) == 51
    assert info.leaves[-1] == []  # it is recorded without a name


def test_texts_are_bounded_and_valid() -> None:
    class RudeError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    assert "could not be made: RuntimeError" in describe(RudeError()).message
    assert describe(RudeError()).type.endswith("RudeError")
    long = describe(ValueError("x" * 100_000))
    assert len(long.message) <= 2_000
    assert len(long.traceback) < 9_000
    assert describe(ValueError("\ud800")).message == "\\ud800"
    assert clean("é") == "é"


def test_deep_recursion_has_a_short_traceback() -> None:
    def deeper(depth: int) -> None:
        deeper(depth + 1)

    with pytest.raises(RecursionError) as caught:
        deeper(0)
    info = describe(caught.value)
    assert 100 < len(info.traceback) < 9_000
    assert "deeper" in info.traceback


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_retry_after_wants_a_delay(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds"):
        RetryAfter(seconds)


# -- signatures --


class Thing:
    def method(self, task: Any) -> None: ...
    def nothing(self) -> None: ...
    async def __call__(self) -> None: ...


async def _async(task: Any) -> None: ...


def _wrapped(func: Any) -> Any:
    @functools.wraps(func)
    def wrapper(*args: Any, **more: Any) -> Any:
        return func(*args, **more)

    return wrapper


@pytest.mark.parametrize(
    ("func", "wants"),
    [
        (lambda: None, False),
        (lambda task: None, True),
        (lambda task, /: None, True),
        (lambda size=3: None, False),
        (lambda task, size=3: None, True),
        (lambda *args: None, True),
        (lambda **more: None, False),
        (lambda *, size=3: None, False),
        (_async, True),
        (functools.partial(lambda a, task: None, 1), True),
        (functools.partial(lambda a: None, 1), False),
        (Thing().method, True),
        (Thing().nothing, False),
        (Thing(), False),
        (_wrapped(lambda: None), False),
        (_wrapped(lambda task: None), True),
    ],
)
def test_who_is_given_the_context(func: Any, wants: bool) -> None:
    assert takes_context(func) is wants
    assert takes_context(func) is wants


def test_a_body_may_want_one_argument_at_most() -> None:
    for func in (lambda a, b: None, lambda *, key: None):
        with pytest.raises(TypeError, match="one argument"):
            takes_context(func)


def test_what_runs_on_the_loop() -> None:
    assert is_async(_async)
    assert is_async(functools.partial(_async, 1))
    assert is_async(Thing())
    assert not is_async(Thing().nothing)
    assert not is_async(print)


# -- output --


@pytest.mark.parametrize("size", [0, 1, 1_023, 1_024, 1_025, 1_500, 2_000, 4_999, 50_000])
def test_output_keeps_head_and_tail(tmp_path: Path, size: int) -> None:
    data = bytes(random.Random(size).randrange(97, 123) for _ in range(size))
    path = tmp_path / "out"
    for chunk in (1, 7, 700, 65_536):
        output = Output(path, 1_024)
        for start in range(0, size, chunk):
            output.write(data[start : start + chunk])
        output.close()
        output.close()
        kept = path.read_bytes()
        assert output.size == size
        if size <= 1_024:
            assert kept == data
            continue
        assert len(kept) == 1_024
        head, note, tail = kept[:512], kept[513:].split(b"\n")[0], kept[512:].split(b"\n", 2)[2]
        assert data.startswith(head)
        assert data.endswith(tail)
        assert len(head) + len(tail) + int(note.split()[1]) == size


def test_output_without_a_file_is_counted(tmp_path: Path) -> None:
    output = Output(None, 10)
    output.write(b"abc\n\n")
    output.close()
    assert (output.size, output.tail(), output.last_line(), list(tmp_path.iterdir())) == (5, "abc", "abc", [])


def test_output_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(OutputUnwritable, match="cannot be made"):
        Output(tmp_path, 10)


def test_the_tail_is_text_for_people() -> None:
    output = Output(None, 10)
    output.write(b"a\tb\r\n\x1b[1;31mred\x1b[0m\x00 \x07bell\r50%\r100%\n\xc3\xa9 \xff\n" + b"z" * 9)
    assert output.tail() == "a\tb\nred bell\n50%\n100%\n\xe9 \N{REPLACEMENT CHARACTER}\nzzzzzzzzz"
    assert output.last_line() == "zzzzzzzzz"
    output.write(b"\n" + b"y" * 100_000)
    assert len(output.tail()) <= 4_000
    assert output.last_line() == "y" * 200


def test_a_body_logs_to_standard_error_where_nothing_is_configured(
    no_logs: object, capsys: pytest.CaptureFixture[str]
) -> None:
    TaskContext(task="build", token=1).log.info("working")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "working" in captured.err
    assert "build" in captured.err
