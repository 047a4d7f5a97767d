"""Words of texts for people: a number of things, and errors about arguments in the words of the caller.

An error names the called function, the unknown name, and the most similar one.

msgspec's own error, "Unexpected keyword argument 'retrys'", names neither the function nor the argument that was
probably meant. Python's error names the class that has the method: users may not know that class.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, signature
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

T = TypeVar("T", bound=type)

_COMPARED = 2_000  # names that are compared for one suggestion: with more names it takes too long
_LONGEST_COMPARED = 200  # characters of a name that is compared with others

if TYPE_CHECKING:
    KeywordsChecked = msgspec.StructMeta  # so that type checkers see the fields of each class
else:

    class KeywordsChecked(msgspec.StructMeta):
        """The metaclass of a Struct that applications make. Decoders do not call it."""

        def __init__(cls, *args: Any, **_: Any) -> None:  # noqa: N805 - of a metaclass
            super().__init__(*args)
            cls._make = msgspec.StructMeta.__call__.__get__(cls)  # bound once: programs make a great many tasks

        def __call__(cls, *args: Any, **named: Any) -> Any:  # noqa: N805 - of a metaclass
            """Make an instance. Raises TypeError for arguments that the class does not take."""
            try:
                return cls._make(*args, **named)
            except TypeError:
                problem = _misfit(cls, args, named)
                if problem is None:  # the class's own check of the values raised it
                    raise
            raise TypeError(problem)


def called_as(name: str) -> Callable[[T], T]:
    """Name the methods of a class as callers write them, for Python's errors about their arguments: `job.cancel()`."""

    def named(kind: T) -> T:
        for method in vars(kind).values():
            if isinstance(method, FunctionType) and not method.__name__.startswith("_"):
                method.__qualname__ = f"{name}.{method.__name__}"
        return kind

    return named


def _misfit(kind: type, args: Sequence[object], named: dict[str, object]) -> str | None:
    """Return the fault in the arguments of a class; None if it takes them."""
    wanted = signature(kind)
    unknown = [name for name in named if name not in wanted.parameters]
    if unknown:
        return unexpected(kind.__name__, unknown[0], list(wanted.parameters))
    by_place = [one for one in wanted.parameters.values() if one.kind is not Parameter.KEYWORD_ONLY]
    if len(args) > len(by_place):
        first = list(wanted.parameters)[len(by_place)] if len(by_place) < len(wanted.parameters) else None
        advice = "" if first is None else f": write names, as in {kind.__name__}({first}=...)"
        return f"{kind.__name__}() takes {len(by_place)} positional arguments, and {len(args)} were given{advice}"
    try:
        wanted.bind(*args, **named)
    except TypeError as error:
        return f"{kind.__name__}(): {error}"
    return None


def unexpected(called: str, name: str, known: Sequence[str]) -> str:
    """The words for an argument that a function or class does not have. called: its name, as the caller writes it."""
    advice = did_you_mean(name, known) or f"it takes {', '.join(known)}"
    return f"{called}() got an unexpected keyword argument {name!r}: {advice}"


def number_of(count: int, one: str, several: str = "") -> str:
    """A number of things in words: "1 failure", "2,000 failures". several: the words for another number than 1, unless
    they are `one` with an "s".
    """
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"


def did_you_mean(name: str, known: Sequence[str]) -> str | None:
    """Suggest the known name that is most like `name`, or None."""
    if len(name) > _LONGEST_COMPARED:
        return None
    folded = name.casefold()
    for candidate in known:
        if candidate.casefold() == folded:
            return f"did you mean {candidate!r}?"
    if len(known) > _COMPARED:
        known = [candidate for candidate in known if candidate[:1] == name[:1]][:_COMPARED]
    from difflib import get_close_matches  # noqa: PLC0415 - needed for an error only

    near = get_close_matches(name, known, n=1)
    return f"did you mean {near[0]!r}?" if near else None
