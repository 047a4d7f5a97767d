"""A body that runs in a runner's task: its context, the scopes it left open, and the kinds of its cancellation.

`runners.py` has the tasks and runs the bodies. Here are the effects that one body may have on such a task.
"""

from __future__ import annotations

import contextvars
import math
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator
from inspect import iscoroutine
from typing import Any, TypeVar, cast

import anyio

from ...actors.user_code import contained, is_a, is_woven, members
from ..loaded_modules import under_trio

T = TypeVar("T")


class StrayCancel(RuntimeError):  # noqa: N818 - it says what happened
    """The body cancelled the asyncio task in which it ran, by `asyncio.current_task().cancel()` or by code that had
    kept a reference to that task. It should return or raise instead, and cancel only tasks that it started.
    """


# Neither anyio nor trio has a public function for the cancel scope of a task, and an asyncio task that ends inside an
# open scope breaks its task group. If a later version has no such private attributes, no scope is found or closed.


def asyncio_scope() -> Callable[[], Any]:
    """Returns the function that finds the innermost cancel scope of the present task under asyncio."""
    import asyncio  # noqa: PLC0415 - only where it is the loop

    from anyio._backends import _asyncio as backend  # noqa: PLC0415 - as above

    states: Any = getattr(backend, "_task_states", {})
    state = states.get(asyncio.current_task())
    return lambda: getattr(state, "cancel_scope", None)


def trio_scope() -> Callable[[], Any]:
    """`asyncio_scope` under trio."""
    import trio  # noqa: PLC0415 - only under trio, where it is loaded already

    task = trio.lowlevel.current_task()
    return lambda: getattr(getattr(task, "_cancel_status", None), "_scope", None)


def scope_around(scope: Any) -> Any:
    """The event loop's scope around another scope; None if it cannot be found."""
    if under_trio():
        return getattr(getattr(getattr(scope, "_cancel_status", None), "parent", None), "_scope", None)
    return getattr(scope, "_parent_scope", None)


def insides(scope: Any) -> int:
    """How many tasks and scopes are directly in a scope; 0 if that cannot be found."""
    if under_trio():
        status = getattr(scope, "_cancel_status", None)
        return len(getattr(status, "_tasks", ())) + len(getattr(status, "_children", ()))
    return len(getattr(scope, "_tasks", ())) + len(getattr(scope, "_child_scopes", ()))


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable


@types.coroutine
def inside(
    context: contextvars.Context, func: Callable[[], Awaitable[T]], refused: Callable[[Any], bool] = bool
) -> Generator[Any, Any, T]:
    """Await a body, and run each of its steps inside ``context``. The event loop sees no difference.

    refused: called before an error is raised in the body, with None, or with the sent object (trio sends outcomes,
    which raise in the body). If it returns True, the body is abandoned where it waits, and the error is raised here.
    """
    awaitable = context.run(func)
    coroutine: Coroutine[Any, Any, T] = awaitable if iscoroutine(awaitable) else _await(awaitable)
    step: Callable[[Any], Any] = coroutine.send
    argument: Any = None
    try:
        while True:
            try:
                waits_for = context.run(step, argument)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return] # StopIteration is not generic
            argument = None
            try:
                argument = yield waits_for
                step = coroutine.send
                if argument is not None and refused(argument):  # under trio
                    argument.unwrap()
            except GeneratorExit:
                context.run(coroutine.close)
                raise
            except BaseException as error:
                if refused(argument):
                    context.run(close, coroutine)
                    raise
                argument = error
                step = coroutine.throw
    finally:
        del argument, awaitable, coroutine, step  # an error's traceback holds this frame


INSIDE = inside.__code__
"""The code that runs each step of a body: the frames above it are those of the body."""


def close(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close a coroutine where it waits. One that raises or waits again stays there, and is never resumed."""
    try:
        coroutine.close()
    except BaseException as error:
        contained(error)


async def awaited(func: Callable[..., Awaitable[T]], *args: Any) -> T:
    """Await a coroutine function of the application in the present task.

    Raises Exceptions only (`actors/user_code.py`), and the cancellation of this task, but none that the function made.
    """
    try:
        return await func(*args)
    except BaseException as raised:
        cancellation, _ = sort_out(raised)
        if cancellation is not None or is_a(raised, Exception) or _is_cancelled_directly():
            raise
        raise contained(raised) from raised


def _is_cancelled_directly() -> bool:
    """Whether some code has called `cancel()` of the present task, which asyncio lets any code do."""
    if under_trio():
        return False
    import asyncio  # noqa: PLC0415 - only where it is the loop

    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def sort_out(raised: BaseException) -> tuple[BaseException | None, BaseException | None]:
    """Separate a cancellation that must be raised again from the body's own error: (cancellation, error)."""
    kind = anyio.get_cancelled_exc_class()
    cancelled = [one for one in members(raised) if is_a(one, kind)]
    if not cancelled or not being_cancelled():
        return None, raised  # not a cancellation, or one that the body made or got from a task it awaited
    return cancelled[0], None if cancelled[0] is raised else _without(raised, kind)


def _without(group: BaseException, kind: type[BaseException]) -> BaseException | None:
    """A group without the errors of a kind; None if it has no others."""
    if not is_woven(group):
        return cast("BaseExceptionGroup[BaseException]", group).split(kind)[1]
    others = [one for one in members(group) if not is_a(one, kind)]  # `split` would visit each member by every path
    return BaseExceptionGroup("errors beside a cancellation", others) if others else None


def being_cancelled() -> bool:
    """Whether a cancel scope around the present task is cancelled."""
    return anyio.current_effective_deadline() == -math.inf


def stray(cause: BaseException | None) -> StrayCancel:
    """The error of a body that a stray cancel ended. cause: the error that the body raised."""
    text = (
        "the body cancelled its own task (asyncio.current_task().cancel(), or something that kept hold of that task): "
        "return or raise instead, and cancel only tasks that the body started"
    )
    error = StrayCancel(text)
    error.__cause__ = cause
    return error
