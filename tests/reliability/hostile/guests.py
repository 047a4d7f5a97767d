"""Hostile code of an application: everything that it may raise, and every object that it may return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from callboard import TaskContext
from callboard.errors import Permanent


class Bare(BaseException):
    """No Exception, and nobody's."""


class NoText(Exception):  # noqa: N818 - what it is
    """Says nothing of itself, and raises where it is asked."""

    def __str__(self) -> str:
        raise SystemExit("in __str__")

    __repr__ = __str__


class Endless(Exception):  # noqa: N818 - what it is
    """What it came of came of something, and so on."""

    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        return Endless()


class Liar(Exception):  # noqa: N818 - what it is
    """Raises where its class, its arguments or its notes are asked for."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise Bare("in __class__")

    @property
    def args(self) -> Any:  # type: ignore[override]
        raise RuntimeError("in args")

    @property
    def __notes__(self) -> Any:
        raise RuntimeError("in __notes__")


class Unequal(Exception):  # noqa: N818 - what it is
    """Cannot be compared, nor be a key."""

    def __eq__(self, other: object) -> bool:
        raise Bare("in __eq__")

    def __hash__(self) -> int:
        raise Bare("in __hash__")

    def __bool__(self) -> bool:
        raise Bare("in __bool__")


def deep(n: int = 0) -> Any:
    """Run into the limit of the interpreter."""
    return deep(n + 1)


def chained() -> BaseException:
    """An error that came of thousands of others."""
    error: BaseException = ValueError("the first")
    for n in range(3_000):
        later = ValueError(n)
        later.__cause__ = error
        error = later
    return error


def grouped(error: BaseException) -> BaseException:
    """An error deep inside of groups."""
    for _ in range(50):
        error = BaseExceptionGroup("g", [error, ValueError("beside it")])
    return error


def woven() -> BaseException:
    """A group of groups that have the same members, over and over: few errors, and a thousand million ways to them."""
    error: Exception = ExceptionGroup("g", [ValueError("a"), KeyError("b")])
    for _ in range(30):
        error = ExceptionGroup("g", [error, error])
    return error


ERRORS: dict[str, Callable[[], BaseException]] = {
    "error": lambda: ValueError("no"),
    "permanent": lambda: Permanent("never"),
    "exit": lambda: SystemExit(0),
    "exit_text": lambda: SystemExit("bye"),
    "interrupt": KeyboardInterrupt,
    "cancelled": lambda: asyncio.CancelledError("mine"),
    "generator": GeneratorExit,
    "bare": lambda: Bare("odd"),
    "stop": lambda: StopIteration(1),
    "async_stop": StopAsyncIteration,
    "memory": MemoryError,
    "group": lambda: ExceptionGroup("g", [ValueError("a"), OSError(5, "odd")]),
    "base_group": lambda: BaseExceptionGroup("g", [SystemExit(1), asyncio.CancelledError(), KeyboardInterrupt()]),
    "deep_group": lambda: grouped(SystemExit(2)),
    "woven": woven,
    "no_text": NoText,
    "endless": Endless,
    "liar": Liar,
    "unequal": Unequal,
    "chained": chained,
    "huge": lambda: ValueError("x" * 5_000_000),
    "no_unicode": lambda: ValueError("a \ud800 b \0 c"),
}


def throw(name: str) -> Any:
    """Raise that one, or run into a limit."""
    if name == "deep":
        deep()
    raise ERRORS[name]()


ALL_ERRORS = (*ERRORS, "deep")


class NoRepr:
    """Raises where it is shown."""

    def __repr__(self) -> str:
        raise SystemExit("in __repr__")

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        raise SystemExit("in __format__")


class NoTruth(NoRepr):
    """Neither true nor false, nor equal to anything."""

    def __bool__(self) -> bool:
        raise Bare("in __bool__")

    def __eq__(self, other: object) -> bool:
        raise Bare("in __eq__")

    def __hash__(self) -> int:
        raise Bare("in __hash__")

    def __len__(self) -> int:
        raise Bare("in __len__")

    def __iter__(self) -> Iterator[Any]:
        raise Bare("in __iter__")

    def __float__(self) -> float:
        raise Bare("in __float__")


class Masked(NoTruth):
    """Says, by raising, of what class it is; and so does its class, of its name."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise SystemExit("in __class__")

    def __getattr__(self, name: str) -> Any:
        raise SystemExit(f"in __getattr__ of {name}")


class LazyList(list[Any]):
    """Has to ask somebody who is gone."""

    def __iter__(self) -> Iterator[Any]:
        raise SystemExit("the session is closed")

    __len__ = None  # type: ignore[assignment]
    __repr__ = NoRepr.__repr__


class EndlessList(list[Any]):
    """Goes on for ever, and deeper."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield EndlessList()

    def __bool__(self) -> bool:
        raise Bare("in __bool__")


class EndlessDict(dict[str, Any]):
    """Goes on for ever."""

    def items(self) -> Any:
        n = 0
        while True:
            n += 1
            yield f"{n}", n

    def __bool__(self) -> bool:
        raise Bare("in __bool__")


class Text(str):
    """A text that raises whatever it is asked."""

    __slots__ = ()

    def encode(self, *_: Any) -> Any:
        raise Bare("in encode")

    def isascii(self) -> bool:
        raise Bare("in isascii")

    def __len__(self) -> int:
        raise Bare("in __len__")

    def __eq__(self, other: object) -> bool:
        raise Bare("in __eq__")

    def __hash__(self) -> int:
        raise Bare("in __hash__")


def nested() -> Any:
    """Deeper than anything should be."""
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    return value


def within(value: Any) -> Any:
    """Inside of what is kept."""
    return {"rows": [1, {"row": value}]}


OBJECTS: dict[str, Callable[[], Any]] = {
    "object": object,
    "no_repr": NoRepr,
    "no_truth": NoTruth,
    "masked": Masked,
    "lazy": lambda: LazyList([1]),
    "endless_list": EndlessList,
    "endless_dict": EndlessDict,
    "key": lambda: {NoRepr(): 1},
    "key_within": lambda: within({NoRepr(): 1}),
    "within": lambda: within(Masked()),
    "nested": nested,
    "surrogate": lambda: within("a\ud800"),
    "surrogate_key": lambda: {"a\ud800": 1},
    "nan": lambda: within(float("nan")),
    "int": lambda: 2**64,
    "an_error": lambda: within(NoText()),
    "a_class": lambda: NoRepr,
}
"""None of them can be kept."""


def gives(task: TaskContext) -> Any:
    """In a worker process: return what `args` names."""
    return OBJECTS[task.args["what"]]()


def throws(task: TaskContext) -> None:
    """The same, and raise it."""
    throw(task.args["what"])
