"""How a function is called: with the task's context or with nothing, on the loop or in a thread.

Whether it takes the context is `runtime/functions/signatures.py`'s answer.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import Any

from ..functions.signatures import name_of, takes_context
from ..loaded_modules import imported
from .contract import Call


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
        raise TypeError(f"{name_of(func)} wants an argument, but this kind of call ({call.kind}) has no context")
    return partial(func, call.context)


def bind_logging(context: Context, bound: dict[str, Any]) -> None:
    """Let structlog's lines inside the body carry these fields and no other's, if structlog is imported at all."""
    structlog = imported("structlog.contextvars")
    if structlog is not None:
        context.run(structlog.bind_contextvars, **bound)
