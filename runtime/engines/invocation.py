"""How a function is called: with the task's context or with nothing, on the loop or in a thread.

`runtime/functions/signatures.py` decides whether it takes the context.
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
    """The call's function, bound to its context if it takes one. Raises TypeError if that is impossible."""
    func = call.func
    if func is None:
        raise TypeError("the call has no function")
    if call.context is None and call.kind == "body":
        return func  # the signature was checked when the call was made
    if not takes_context(func):
        return func
    if call.context is None:
        raise TypeError(f"{name_of(func)} wants an argument, but this kind of call ({call.kind}) has no context")
    return partial(func, call.context)


def bind_logging(context: Context, bound: dict[str, Any]) -> None:
    """Bind only these fields to structlog's lines inside the body, if structlog is imported at all."""
    structlog = imported("structlog.contextvars")
    if structlog is not None:
        context.run(structlog.bind_contextvars, **bound)
