"""How a function is called: with the task's context or with nothing, on the loop or in a thread.

A function takes the context if its signature has a positional parameter without a default (or `*args`). More
than one is a mistake that is told before anything runs. The answer is found once per function.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any
from weakref import ref

from ..functions.loaded_modules import imported
from .contract import Call

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_known: dict[int, tuple[ref[Any], bool]] = {}  # by the id of a function, as long as that lives


def takes_context(func: Callable[..., Any]) -> bool:
    """Does the function want the task's context? Raises TypeError if it wants more than that."""
    key = id(func)
    known = _known.get(key)
    if known is not None and known[0]() is func:
        return known[1]
    answer = _look_up(func)
    with contextlib.suppress(TypeError):  # it may not be weakly referable
        _known[key] = (ref(func, partial(_forget, key)), answer)
    return answer


def _forget(key: int, dead: ref[Any]) -> None:
    known = _known.get(key)
    if known is not None and known[0] is dead:
        del _known[key]


def is_async(func: Callable[..., Any]) -> bool:
    """Is it an async function, so that it runs on the loop? Looks through partials and callable objects."""
    while isinstance(func, partial):
        func = func.func
    return inspect.iscoroutinefunction(func) or inspect.iscoroutinefunction(getattr(func, "__call__", None))  # noqa: B004


def bind(call: Call) -> Callable[[], Any]:
    """The call's function with its context given, if it wants one. Raises TypeError when that cannot be."""
    func = call.func
    if func is None:
        raise TypeError("the call has no function")
    if call.context is None and call.kind == "body":
        return func  # whoever made the call has looked already
    if not takes_context(func):
        return func
    if call.context is None:
        raise TypeError(f"{_name(func)} wants an argument, but this kind of call ({call.kind}) has no context")
    return partial(func, call.context)


def bind_logging(context: Context, bound: dict[str, Any]) -> None:
    """Let structlog's lines inside the body carry these fields and no other's, if structlog is imported at all."""
    structlog = imported("structlog.contextvars")
    if structlog is not None:
        context.run(structlog.bind_contextvars, **bound)


def _look_up(func: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(func).parameters.values()
    except ValueError:
        return False  # some builtins do not tell
    wanted = [one.name for one in parameters if one.kind in _POSITIONAL and one.default is one.empty]
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if len(wanted) > 1 or named:
        raise TypeError(
            f"{_name(func)} wants {', '.join([*wanted, *named])}; a body takes nothing, or one argument: "
            "the TaskContext"
        )
    return bool(wanted) or any(one.kind is one.VAR_POSITIONAL for one in parameters)


def _name(func: Callable[..., Any]) -> str:
    return f"the function {getattr(func, '__qualname__', None) or repr(func)}"
