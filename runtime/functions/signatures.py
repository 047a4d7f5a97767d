"""The signatures of the application's functions: whether they take a context, and are async.

A function takes the task's context if its signature has a positional parameter without a default (or `*args`). More
than one such parameter is an error, raised before any body runs. The answer is cached per function.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from ...actors.user_code import is_coroutine_function

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_known: dict[int, tuple[ref[Any], bool]] = {}  # by the id of a function, as long as that lives


def takes_context(func: Callable[..., Any]) -> bool:
    """Whether a function takes the task's context. Raises TypeError if it takes more arguments."""
    key = id(func)
    kept = _known.get(key)
    if kept is not None and kept[0]() is func:
        return kept[1]
    answer = _look_up(func)
    with contextlib.suppress(TypeError):  # the function may not be weakly referable
        _known[key] = (ref(func, partial(_forget, key)), answer)
    return answer


def _forget(key: int, dead: ref[Any]) -> None:
    kept = _known.get(key)
    if kept is not None and kept[0] is dead:
        del _known[key]


def is_async(func: Callable[..., Any]) -> bool:
    """Whether a function is async and runs on the loop. Looks through partials and callable objects."""
    while isinstance(func, partial):
        func = func.func
    return is_coroutine_function(func) or is_coroutine_function(getattr(func, "__call__", None))  # noqa: B004


def _look_up(func: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(func).parameters.values()
    except ValueError:
        return False  # some builtins have no signature
    wanted = [one.name for one in parameters if one.kind in _POSITIONAL and one.default is one.empty]
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if len(wanted) > 1 or named:
        raise TypeError(
            f"{name_of(func)} wants {', '.join([*wanted, *named])}; a body takes nothing, or one argument: "
            "the TaskContext"
        )
    return bool(wanted) or any(one.kind is one.VAR_POSITIONAL for one in parameters)


def name_of(func: Callable[..., Any]) -> str:
    """A function in words."""
    return f"the function {getattr(func, '__qualname__', None) or repr(func)}"
