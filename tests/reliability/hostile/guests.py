"""Hostile code of an application: everything that it may raise, and every object that it may return."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

from callboard import TaskContext
from callboard.errors import Permanent


class Bare(BaseException):
    """An error that is no Exception, and no error of Python's own."""


class NoText(Exception):  # noqa: N818 - what it is
    """An error whose text raises."""

    def __str__(self) -> str:
        raise SystemExit("in __str__")

    __repr__ = __str__


class Endless(Exception):  # noqa: N818 - what it is
    """An error whose cause has a cause, without an end."""

    @property
    def __cause__(self) -> BaseException | None:  # type: ignore[override]
        return Endless()


class Liar(Exception):  # noqa: N818 - what it is
    """An error whose class, arguments and notes raise."""

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
    """An object that raises when it is compared or hashed."""

    def __eq__(self, other: object) -> bool:
        raise Bare("in __eq__")

    def __hash__(self) -> int:
        raise Bare("in __hash__")

    def __bool__(self) -> bool:
        raise Bare("in __bool__")


def deep(n: int = 0) -> Any:
    """Recurse to the limit of the interpreter."""
    return deep(n + 1)


def chained() -> BaseException:
    """An error with a chain of thousands of causes."""
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
    """A group of groups with the same members, again and again: few errors, and a thousand million paths to them."""
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
    """Raise that error, or recurse to the limit."""
    if name == "deep":
        deep()
    raise ERRORS[name]()


ALL_ERRORS = (*ERRORS, "deep")


class NoRepr:
    """An object whose repr raises."""

    def __repr__(self) -> str:
        raise SystemExit("in __repr__")

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        raise SystemExit("in __format__")


class NoTruth(NoRepr):
    """An object whose truth raises, and that equals nothing."""

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
    """An object whose class raises, and whose class's name raises."""

    @property
    def __class__(self) -> Any:  # type: ignore[override]
        raise SystemExit("in __class__")

    def __getattr__(self, name: str) -> Any:
        raise SystemExit(f"in __getattr__ of {name}")


class LazyList(list[Any]):
    """A list that raises when it is read, since its session is closed."""

    def __iter__(self) -> Iterator[Any]:
        raise SystemExit("the session is closed")

    __len__ = None  # type: ignore[assignment]
    __repr__ = NoRepr.__repr__


class EndlessList(list[Any]):
    """A list without an end, and without a limit of its depth."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield EndlessList()

    def __bool__(self) -> bool:
        raise Bare("in __bool__")


class EndlessDict(dict[str, Any]):
    """A dict without an end."""

    def items(self) -> Any:
        n = 0
        while True:
            n += 1
            yield f"{n}", n

    def __bool__(self) -> bool:
        raise Bare("in __bool__")


class Text(str):
    """A text whose methods raise."""

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
    """A list that is nested deeper than any limit."""
    value: Any = 1
    for _ in range(100_000):
        value = [value]
    return value


def within(value: Any) -> Any:
    """A dict that holds the object deep inside."""
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
"""Objects that cannot be stored."""


def gives(task: TaskContext) -> Any:
    """In a worker process: return the object that `args` names."""
    return OBJECTS[task.args["what"]]()


def throws(task: TaskContext) -> None:
    """In a worker process: raise the error that `args` names."""
    throw(task.args["what"])
