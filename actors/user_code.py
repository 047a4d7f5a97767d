"""Calls to the application's functions, and texts about its objects and errors.

Rules
-----
- A user's code may raise anything and return anything. It fails the operation that called it, and nothing else.
- `called` calls a function of the application, and raises Exceptions only. A BaseException that is no Exception
  (SystemExit, a cancellation that nobody requested, GeneratorExit, a group with such a member) becomes an
  `EscapedException`, which names it. Where that costs too much, `contained` converts a caught error in the same way.
  Messages to people never show the `EscapedException`: they show the error that the code raised (`raised_by_user`).
- An interrupt from the terminal is raised on: a KeyboardInterrupt that a signal raised is meant for the program. A
  KeyboardInterrupt that the code raises itself, by a `raise`, is an error like any other.
- The `repr`, `str` and `__class__` of an application's object are not trusted: `shown`, `message_of` and `kind_name`
  raise nothing, and return text that is bounded and can be stored. The class is read by `type`.
- Its size is not trusted either. A few lists that contain one another several times expand to more values than any
  memory has, so code that walks, writes or copies an object counts its values first (`holds_more`). For a subclass of
  list, tuple or dict, the stored items count (`elements`, `entries`), not those that its methods return.
- Coroutines are not called here: a cancellation may be meant for them. `runtime/dispatch/body_context.py` decides that.
"""

from __future__ import annotations

import dis
import inspect
import signal
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import CodeType, FunctionType, MethodType, NoneType, TracebackType
from typing import Any, ParamSpec, TypeVar, cast

import msgspec

P = ParamSpec("P")
T = TypeVar("T")

LONGEST = 300
"""Characters of an object that are shown."""
MOST_SHOWN = 1_000_000
"""Values and characters of an object that are written before its text is cut."""
_LONGEST_NAME = 200
_LONGEST_MEMBER = 100  # characters of the text of a group's member
_MOST_MEMBERS = 5
_RAISES = frozenset({dis.opmap["RAISE_VARARGS"], dis.opmap["RERAISE"]})
_QUALIFIED: Any = type.__dict__["__qualname__"]  # a metaclass may override this attribute
_MODULE: Any = type.__dict__["__module__"]
_MEMBERS: Any = BaseExceptionGroup.__dict__["exceptions"]
_BASES: Any = type.__dict__["__mro__"]
_CLASS: Any = type.__dict__["__dict__"]
_ARGS: Any = BaseException.__dict__["args"]
_TRACE: Any = BaseException.__dict__["__traceback__"]
_CAUSE: Any = BaseException.__dict__["__cause__"]
_CONTEXT: Any = BaseException.__dict__["__context__"]


class EscapedException(Exception):  # noqa: N818 - the name says what happened
    """A function of the application raised a BaseException that is no Exception, as SystemExit."""


def is_coroutine_function(func: object) -> bool:
    """Whether a function is declared async, or marked as one that returns a coroutine.

    Before Python 3.12 such a mark is known to asyncio, and not to `inspect`. Raises what the object's own code raises.
    """
    if inspect.iscoroutinefunction(func):
        return True
    if sys.version_info >= (3, 12) or (mark := getattr(func, "_is_coroutine", None)) is None:
        return False
    return mark is asyncio_mark()


def asyncio_mark() -> object:
    """The mark by which asyncio knows coroutine functions before Python 3.12. Asyncio is imported when it is needed."""
    from asyncio import coroutines  # noqa: PLC0415

    return getattr(coroutines, "_is_coroutine", None)


def called(function: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Call a function of the application. Raises Exceptions only, and a KeyboardInterrupt of the terminal."""
    try:
        return function(*args, **named)
    except BaseException as error:
        if is_a(error, Exception):
            raise
        raise contained(error) from error


def contained(error: BaseException) -> Exception:
    """An error of a user's code, as an Exception. Raises an interrupt of the terminal again."""
    if is_a(error, Exception):
        return cast("Exception", error)
    if from_terminal(error):
        raise error
    escaped = EscapedException(message_of(error))
    escaped.__cause__ = error
    return escaped


def raised_by_user(value: T) -> T | BaseException:
    """The error that the application raised, for an `EscapedException`; any other value unchanged."""
    if type(value) is not EscapedException:
        return value
    cause = cast("EscapedException", value).__cause__
    return value if cause is None else cause


def truth(value: object) -> bool:
    """The truth value of an application's object. Raises Exceptions only."""
    return called(bool, value)


def is_a(value: object, kind: type | tuple[type, ...]) -> bool:
    """`isinstance` for an object whose `__class__` may be wrong, or may raise."""
    return issubclass(type(value), kind)


def plain(value: T) -> T:
    """A text or number of a built-in type: the value of an instance of a subclass of str, int or float. Raises nothing.

    Returns any other value, and a bool, unchanged. Methods of such a subclass may return wrong values, or raise, and no
    encoder knows how to write it.
    """
    kind = type(value)
    for base in (str, int, float):
        if issubclass(kind, base) and kind is not bool:
            return value if kind is base else _PLAIN[base](value)
    return value


def plain_text(value: object, what: str) -> str:
    """A text from a user, as a plain str. Raises TypeError, naming `what`, for any other type."""
    value = plain(value)
    if type(value) is not str:
        raise TypeError(f"{what} is a str, not {shown(value, 60)}")
    return value


def written(value: object) -> object:
    """For encoders: a plain value of an unknown object, or its text. Raises nothing."""
    found = plain(value)
    return shown(value) if found is value else found


def members(error: BaseException) -> Iterator[BaseException]:
    """The error, or all errors in a group and in its nested groups, in order, each once."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if is_a(one, BaseExceptionGroup):
            waiting.extend(reversed(_MEMBERS.__get__(one)))
        else:
            yield one


def is_woven(error: BaseException) -> bool:
    """Whether a group contains the same error more than once. The number of paths to it has no bound."""
    waiting, seen = [error], set[int]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            return True
        seen.add(id(one))
        if is_a(one, BaseExceptionGroup):
            waiting.extend(_MEMBERS.__get__(one))
    return False


def origins(error: BaseException) -> Iterator[BaseException]:
    """The error and its chain, each once: of each error its cause, else its context."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        cause = _CAUSE.__get__(one)
        one = _CONTEXT.__get__(one) if cause is None else cause


def set_traceback(error: BaseException, trace: TracebackType | None) -> None:
    """Set an error's traceback."""
    _TRACE.__set__(error, trace)


def from_terminal(error: BaseException) -> bool:
    """Whether an error is a KeyboardInterrupt that a signal raised, or a group with one: it is meant for the program.

    A signal raised it if it comes from the signal's handler, or if the interrupted instruction is no `raise`.
    """
    return any(_interrupts(one) for one in members(error) if is_a(one, KeyboardInterrupt))


def _interrupts(error: BaseException) -> bool:
    trace = _TRACE.__get__(error)
    if trace is None:
        return False
    handler = _code_of(signal.getsignal(signal.SIGINT))
    while trace.tb_frame.f_code is not handler:
        if trace.tb_next is None:
            return trace.tb_frame.f_code.co_code[trace.tb_lasti] not in _RAISES
        trace = trace.tb_next
    return True


def _code_of(handler: object) -> CodeType | None:
    """The code object of a signal's handler; None if the handler is not Python."""
    while isinstance(handler, partial | MethodType):
        handler = handler.func if isinstance(handler, partial) else handler.__func__
    return handler.__code__ if isinstance(handler, FunctionType) else None


_PLAIN: dict[type, Any] = {str: str.__str__, int: int.__int__, float: float.__float__}


def elements(value: object) -> Iterator[Any]:
    """The stored items of a list or a tuple, whatever its class overrides."""
    return (list if is_a(value, list) else tuple).__iter__(value)  # type: ignore[arg-type]


def entries(value: object) -> Iterator[tuple[Any, Any]]:
    """The stored keys and values of a dict, whatever its class overrides."""
    return iter(_ITEMS(value))


def holds_more(most: int, *values: object) -> bool:
    """Whether `values` contain more than `most` values, each counted as often as it would be written.

    A text counts its characters. Only types that Python writes by itself are walked: lists, tuples, dicts, sets,
    queues, Structs, dataclasses, errors. Each object is walked once, however often it is contained; a cycle counts as
    the object that it leads back to.
    """
    sizes: dict[int, int] = {}  # by id; 0 while an object is being counted
    open_ones: list[tuple[int, Iterator[object]]] = [(0, iter(values))]
    counts = [0]
    while open_ones:
        key, parts = open_ones[-1]
        for part in parts:
            kind = type(part)
            if kind in _ATOMS:
                continue
            if kind is str:
                counts[-1] += _LENGTHS[str](part)
            elif (length := _length(kind, part)) is not None:
                counts[-1] += length
            elif (inner := _parts(kind, part)) is not None:
                size = sizes.get(id(part))
                if size is None:
                    sizes[id(part)] = 0
                    open_ones.append((id(part), iter(inner)))
                    counts.append(len(inner))
                    break
                counts[-1] += size
            if counts[-1] > most:
                return True
        else:
            open_ones.pop()
            sizes[key] = counts.pop()
            if counts:
                counts[-1] += sizes[key]
            if sizes[key] > most:
                return True
    return False


def _length(kind: type, value: Any) -> int | None:
    """The length of a text; None for any other value."""
    for base, length in _LENGTHS.items():
        if issubclass(kind, base):
            return int(length(value))
    return None


def _parts(kind: type, value: Any) -> list[Any] | None:
    """The items of a container; None for any other value."""
    if issubclass(kind, (list, tuple)):
        return [*elements(value)]
    if issubclass(kind, dict):
        return [part for entry in entries(value) for part in entry]
    for base, gives in _GIVES.items():
        if issubclass(kind, base):
            return [*gives(value)]
    if issubclass(kind, BaseException):
        return [*_ARGS.__get__(value)]
    if issubclass(kind, msgspec.Struct):
        return [*msgspec.structs.astuple(value)]
    for base in _BASES.__get__(kind):
        if (fields := _CLASS.__get__(base).get("__dataclass_fields__")) is not None:
            return [_of_its_own(value, name) for name in cast("dict[str, object]", fields)]
    return None


def _of_its_own(value: object, name: str) -> object:
    """A field of a dataclass, read without its own code; None if the field is missing."""
    try:
        return object.__getattribute__(value, name)
    except BaseException as error:  # a property with the field's name
        contained(error)
        return None


_ATOMS = frozenset({NoneType, bool, int, float, FunctionType})
_ITEMS: Any = dict.__dict__["items"]
_GIVES: dict[type, Any] = {kind: kind.__dict__["__iter__"] for kind in (set, frozenset, deque)}
_LENGTHS: dict[type, Any] = {str: str.__len__, bytes: bytes.__len__, bytearray: bytearray.__len__}

# -- in words ----------------------------------------------------------------------------------------------------------


def shown(value: object, longest: int = LONGEST) -> str:
    """The repr of an object, cut if it is long. Raises nothing."""
    original = raised_by_user(value)
    if is_a(original, BaseExceptionGroup) and is_woven(cast("BaseException", original)):
        return message_of(cast("BaseException", original), longest)  # Python would write all paths to its members
    try:
        if holds_more(MOST_SHOWN, original):
            return f"a {kind_name(original)} that is too large to be shown"
        text = ascii(original) if type(original) is str and not original.isprintable() else repr(original)
    except BaseException as error:
        if from_terminal(error):
            raise
        return f"a {kind_name(original)}"
    return kept(text, longest)


def message_of(error: BaseException, longest: int = LONGEST) -> str:
    """One line about an error: its type and text, and those of a group's members. Raises nothing."""
    text, original = text_of(error, longest), raised_by_user(error)
    if type(original) is EscapedException:
        return text  # a copy without its cause: its text is such a line already
    line = f"{kind_name(error)}: {text}" if text else kind_name(error)
    if not is_a(original, BaseExceptionGroup):
        return line
    leaves = [message_of(one, _LONGEST_MEMBER) for one in members(original)]
    return kept(f"{line}: {some_of(leaves, '; ')}", longest + _LONGEST_NAME)


def some_of(texts: Sequence[str], separator: str) -> str:
    """The first of many texts, joined, and the number of the others."""
    more = [f"and {len(texts) - _MOST_MEMBERS} more"] if len(texts) > _MOST_MEMBERS else []
    return separator.join([*texts[:_MOST_MEMBERS], *more])


def text_of(error: BaseException, longest: int = LONGEST) -> str:
    """The text of an error. Raises nothing."""
    if is_vast(error):
        return "(its text is too large to be made)"
    try:
        text = str(raised_by_user(error))
    except BaseException as broken:
        if from_terminal(broken):
            raise
        return f"(its text could not be made: {kind_name(broken)})"
    return kept(text, longest)


def is_vast(error: BaseException) -> bool:
    """Whether an error's arguments are too large to make its text. A single text as argument never is."""
    args = _ARGS.__get__(raised_by_user(error))
    return not (len(args) == 1 and is_a(args[0], str)) and holds_more(MOST_SHOWN, *args)


def kind_name(value: object) -> str:
    """The name of an object's class, or of a class; for an `EscapedException`, of the raised error. Raises nothing."""
    original = raised_by_user(value)
    kind: type = original if is_a(original, type) else type(original)  # type: ignore[assignment]
    return kept(_QUALIFIED.__get__(kind), _LONGEST_NAME)


def class_name(kind: type) -> str:
    """The name of a class with its module. Raises nothing."""
    module = _MODULE.__get__(kind)
    return f"{kept(module, _LONGEST_NAME)}.{kind_name(kind)}" if is_a(module, str) else kind_name(kind)


def kept(text: str, longest: int) -> str:
    """A text that any journal can hold: a plain str, valid Unicode, and not longer than `longest` characters."""
    text = str.__str__(text)  # a subclass may override every other method
    if len(text) > longest:
        cut = f"... ({len(text)} characters)"
        text = text[: max(longest - len(cut), 0)] + cut
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
