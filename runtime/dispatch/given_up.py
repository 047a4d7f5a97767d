"""How a body gave up a call that it awaited, so that a replay can end the same call in the same way, at once.

Rules
- A body gives up what it awaits by a cancel scope or time limit of its own. That is a decision, as the choice between
  two messages is, and a replay must come to the same one. The scopes of its runner, and those around the runner, are
  the runtime's: a body that they cancel has given up nothing.
- The way is kept as a text: `DEADLINE n` and `CANCEL n` (the n-th scope around the call, of which the innermost is 0,
  was over or was cancelled), `ASYNCIO` (by asyncio itself, as `asyncio.timeout` does), or `OTHER`: another part of the
  body cancelled it, and does so again in the replay.
"""

from __future__ import annotations

import gc
import math
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from ..loaded_modules import under_trio
from .body_context import INSIDE, asyncio_scope, being_cancelled, insides, scope_around, trio_scope

if TYPE_CHECKING:
    from types import FrameType

DEADLINE, CANCEL, ASYNCIO, OTHER = "deadline", "cancel", "asyncio", "other"


class Limit(NamedTuple):
    """A scope or time limit of a body around one of its calls. end: ends what the limit holds.

    sole: no other task of the body runs in it.
    """

    end: Callable[[], object]
    sole: bool


def gave_up(bases: Collection[Any]) -> str | None:
    """How the body has given up the call whose cancellation is being raised; None if the runtime ends the body.

    bases: the innermost scopes of the runners, in which bodies begin.
    """
    own, runtimes = _scopes(bases)
    if any(scope.cancel_called for scope in runtimes):
        return None
    cancelled = [place for place, scope in enumerate(_visible(own)) if scope.cancel_called]
    if cancelled:  # the outermost one ends here what it holds
        place = cancelled[-1]
        if own[place].deadline <= anyio.current_time():
            return f"{DEADLINE} {place}"
        return f"{CANCEL} {place}" if _is_sole(own, place) else OTHER
    if being_cancelled():
        return None
    return ASYNCIO if runtimes else OTHER


def limit(way: str, bases: Collection[Any]) -> Limit | None:
    """The limit by which the body gave up this call before; None if there is no such limit now."""
    if way == OTHER:
        return None
    if way == ASYNCIO:
        return None if under_trio() else _limit_of_asyncio()
    own, _ = _scopes(bases)
    kind, text = way.split()
    place = int(text)
    if place >= len(own) or (kind == DEADLINE and own[place].deadline == math.inf):
        return None
    end = own[place].cancel if kind == CANCEL else partial(_let_pass, own[place], anyio.current_time())
    return Limit(end, sole=_is_sole(own, place))


def _let_pass(scope: Any, now: float) -> None:
    scope.deadline = now  # which is past when this is called, perhaps by a timer, which runs in no task


def _scopes(bases: Collection[Any]) -> tuple[list[Any], list[Any]]:
    """The scopes of the body around the present call, and those of the runtime around them, the innermost first."""
    scope = (trio_scope if under_trio() else asyncio_scope)()()
    own: list[Any] = []
    runtimes: list[Any] = []
    while scope is not None:
        (runtimes if runtimes or scope in bases else own).append(scope)
        scope = scope_around(scope)
    return own, runtimes


def _visible(scopes: list[Any]) -> Iterator[Any]:
    """The scopes whose cancellation comes to the call: those up to the first shield."""
    for scope in scopes:
        yield scope
        if scope.shield:
            return


def _is_sole(scopes: list[Any], place: int) -> bool:
    """Whether no other task runs in the scope at that place."""
    return all(insides(scope) == 1 for scope in scopes[: place + 1])


def _limit_of_asyncio() -> Limit:
    """The time limit of asyncio around the present call that ends first.

    It is looked for when it is to be ended, when the body waits: only then the interpreter shows what the coroutines
    of the body hold.
    """
    import asyncio  # noqa: PLC0415 - only where it is the loop

    task, body, loop = asyncio.current_task(), _coroutine_of_body(), asyncio.get_running_loop()

    def end() -> None:
        if task is None or task.done():
            return
        held = list(_held(body or task.get_coro(), (asyncio.Timeout, asyncio.TaskGroup)))
        limits = [one for one in held if isinstance(one, asyncio.Timeout) and one.when() is not None]
        if limits and not any(isinstance(one, asyncio.TaskGroup) for one in held):  # a group cancels it again itself
            min(limits, key=lambda one: one.when() or 0.0).reschedule(loop.time())

    return Limit(lambda: loop.call_soon(end), sole=True)


def _coroutine_of_body() -> Any:
    """The coroutine of the body that runs here; None if another task than its runner's runs here."""
    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code is not INSIDE:
        frame = frame.f_back
    return None if frame is None else frame.f_locals["coroutine"]


def _held(coroutine: Any, kinds: tuple[type, ...]) -> Iterator[Any]:
    """The objects of these kinds that a waiting coroutine, and those that it awaits, have entered or hold."""
    while coroutine is not None:
        yield from {id(one): one for one in _entered(coroutine) if isinstance(one, kinds)}.values()
        coroutine = getattr(coroutine, "cr_await", None)


def _entered(frame: Any) -> Iterator[Any]:
    """What a waiting coroutine or generator holds; also by context managers that are generators, and by exit stacks."""
    for one in gc.get_referents(frame):
        owner = getattr(one, "__self__", one)
        yield owner
        if isinstance(owner, AbstractContextManager | AbstractAsyncContextManager):
            yield from _entered(getattr(owner, "gen", None))
            for _, leave in getattr(owner, "_exit_callbacks", ()):
                yield getattr(leave, "__self__", None)
