"""Short waits that a cancel of the caller does not cut short: the caller has to know what was persisted.

Rules
- The cancel is raised where the caller waits next.
- A shield holds off the cancellation of scopes, and not the one of asyncio itself (`asyncio.timeout`, `Task.cancel`).
  That one is raised once: so the wait is repeated, and the cancel is made again. A second one ends the wait.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeVar

import anyio

from ...actors.user_code import is_a
from .body_context import being_cancelled
from .given_up import expired_of_asyncio

if TYPE_CHECKING:
    from asyncio import Task
    from typing import Any

T = TypeVar("T")
_CLEARED = sys.version_info >= (3, 13)  # a time limit of asyncio that is left takes back its cancel


def is_cancellation(error: BaseException) -> bool:
    """Whether an error is a cancellation of the present task."""
    if is_a(error, (Exception, GeneratorExit, KeyboardInterrupt, SystemExit)):
        return False  # before the event loop is asked for: a coroutine may be closed when there is none any more
    return is_a(error, anyio.get_cancelled_exc_class())


async def despite_cancel(
    wait: Callable[[], Awaitable[T]], is_last: Callable[[T], bool], *, was_cancelled: bool = False
) -> T:
    """Await something to its end, although the caller is cancelled meanwhile. Returns its result.

    wait: it may be called again. is_last: whether the caller has nothing more to wait for once it has that result. Then
    a time limit of asyncio that is over does not cancel it again before Python 3.13, where a cancel that comes just
    before the limit is left would be raised behind it. was_cancelled: asyncio has cancelled the caller
    before.
    """
    results: list[T] = []
    with anyio.CancelScope(shield=True):
        while not results:
            try:
                results.append(await wait())
            except BaseException as error:
                if not is_cancellation(error) or being_cancelled() or was_cancelled:
                    raise  # asyncio cancels again where a program ends: nobody answers any more
                was_cancelled = True
    if was_cancelled and (_CLEARED or not is_last(results[0]) or not await _is_late()):
        _cancel_again()
    return results[0]


async def _is_late() -> bool:
    """Whether a time limit of asyncio around the caller is over."""
    return await despite_cancel(expired_of_asyncio, _never) is not None


def _never(_: object) -> bool:
    return False


def _cancel_again() -> None:
    import asyncio  # noqa: PLC0415 - only there a caller is cancelled without a scope

    task: Task[Any] | None = asyncio.current_task()
    if task is not None:
        task.uncancel()
        task.cancel()
