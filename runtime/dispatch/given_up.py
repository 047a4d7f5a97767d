"""How a body gave up a call that it awaited, so that a replay can end the same call in the same way, at once.

Rules
- A body gives up what it awaits by a cancel scope or time limit of its own. That is a decision, as the choice between
  two messages is, and a replay must come to the same one. The scopes of its runner, and those around the runner, are
  the runtime's: a body that they cancel has given up nothing.
- The way is kept as a text: `DEADLINE n` and `CANCEL n` (the n-th scope around the call, of which the innermost is 0,
  was over or was cancelled), `ASYNCIO n` (the n-th time limit of asyncio, of which the outermost is 0, was over), or
  `OTHER`: another part of the body cancelled the call, and does so again in the replay.
"""

from __future__ import annotations

import contextlib
import gc
import math
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import AsyncExitStack, ExitStack
from types import MethodType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import anyio
import anyio.lowlevel

from ..loaded_modules import under_trio
from .body_context import INSIDE, asyncio_scope, being_cancelled, insides, scope_around, trio_scope

if TYPE_CHECKING:
    from types import FrameType

DEADLINE, CANCEL, ASYNCIO, OTHER = "deadline", "cancel", "asyncio", "other"

Limit: TypeAlias = Callable[[], object]
"""Ends what a scope or time limit of a body holds."""


class Held(NamedTuple):
    """Whether a body is inside a time limit, or a task group, of asyncio."""

    limit: bool = False
    group: bool = False


async def gave_up(bases: Collection[Any]) -> str | None:
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
        return f"{CANCEL} {place}" if _is_sole(own) else OTHER
    if being_cancelled():
        return None
    late = await expired_of_asyncio()
    return OTHER if late is None else f"{ASYNCIO} {late}"


def _is_sole(scopes: list[Any]) -> bool:
    """Whether the body has no other task that could have cancelled a scope. Under trio such a task may have ended."""
    if under_trio():
        import trio  # noqa: PLC0415 - only under trio, where it is loaded already

        if trio.lowlevel.current_task().child_nurseries:
            return False
    return all(insides(scope) == 1 for scope in scopes)


async def limit(way: str, bases: Collection[Any]) -> Limit | None:
    """The limit by which the body gave up this call before, `way` is not `OTHER`; None if there is none now."""
    kind, text = way.split()
    place = int(text)
    if kind == ASYNCIO:
        return await _limit_of_asyncio(place)
    own, _ = _scopes(bases)
    if place >= len(own) or (kind == DEADLINE and own[place].deadline == math.inf):
        return None
    return own[place].cancel if kind == CANCEL else lambda: _let_pass(own[place])


def _let_pass(scope: Any) -> None:
    scope.deadline = anyio.current_time()


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


async def held_of_asyncio() -> Held:
    """What the body that runs here has entered of asyncio itself, which no scope shows."""
    if under_trio():
        return Held()
    import asyncio  # noqa: PLC0415 - only where it is the loop

    held = await _held_here((asyncio.Timeout, asyncio.TaskGroup))
    groups = [one for one in held if isinstance(one, asyncio.TaskGroup)]
    return Held(limit=len(held) > len(groups), group=bool(groups))


async def expired_of_asyncio() -> int | None:
    """The place of the first time limit of asyncio around the present call that is over."""
    if under_trio():
        return None
    import asyncio  # noqa: PLC0415 - only where it is the loop

    limits: list[asyncio.Timeout] = await _held_here((asyncio.Timeout,))
    return next((place for place, one in enumerate(limits) if one.expired()), None)


async def _limit_of_asyncio(place: int) -> Limit | None:
    if under_trio():
        return None
    import asyncio  # noqa: PLC0415 - only where it is the loop

    limits: list[asyncio.Timeout] = await _held_here((asyncio.Timeout,))
    loop = asyncio.get_running_loop()
    return None if place >= len(limits) else lambda: limits[place].reschedule(loop.time())


async def _held_here(kinds: tuple[type, ...]) -> list[Any]:
    """The objects of these kinds around the present call, the outermost first. It takes a turn of the loop: the
    interpreter shows what a coroutine holds only while it waits.
    """
    import asyncio  # noqa: PLC0415 - only where it is the loop

    coroutine = _coroutine_here()
    found: list[list[Any]] = []

    def look() -> None:
        held: list[Any] = []
        with contextlib.suppress(Exception):  # of objects of the interpreter that look different in another version
            held += _held(coroutine, kinds)
        found.append(held)

    asyncio.get_running_loop().call_soon(look)
    while not found:
        await anyio.lowlevel.checkpoint()
    return found[0]


def _coroutine_here() -> Any:
    """The coroutine of the body that runs here, or of the task that it has started."""
    import asyncio  # noqa: PLC0415 - only where it is the loop

    frame: FrameType | None = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None and frame.f_code is not INSIDE:
        frame = frame.f_back
    task: Any = asyncio.current_task()
    return task.get_coro() if frame is None else frame.f_locals["coroutine"]


def _held(coroutine: Any, kinds: tuple[type, ...]) -> list[Any]:
    """The objects of these kinds that a waiting coroutine, and those that it awaits, have entered or hold."""
    held: dict[int, Any] = {}
    while coroutine is not None:
        held |= {id(one): one for one in _entered(coroutine) if issubclass(type(one), kinds) and not _was_left(one)}
        coroutine = getattr(coroutine, "cr_await", None)
    return list(held.values())


def _was_left(one: Any) -> bool:
    """Whether a time limit or task group of asyncio is over that a variable holds."""
    state = getattr(one, "_state", None)  # of a time limit; neither has a public function for it
    if state is not None:
        return state.value not in {"active", "expiring"}
    return bool(getattr(one, "_exiting", False)) and not getattr(one, "_tasks", True)


def _entered(frame: Any) -> Iterator[Any]:
    """What a waiting coroutine or generator holds; also by context managers that are generators, and by exit stacks.

    No attribute of users' objects is read: that could run any code.
    """
    for one in gc.get_referents(frame):
        owner: Any = one.__self__ if type(one) is MethodType else one  # such as the `__aexit__` of what was entered
        yield owner
        if issubclass(type(owner), _OF_GENERATORS):
            yield from _entered(owner.gen)
        elif issubclass(type(owner), ExitStack | AsyncExitStack):
            for _, leave in owner._exit_callbacks:
                yield leave.__self__ if type(leave) is MethodType else leave


_OF_GENERATORS: tuple[type, ...] = (getattr(contextlib, "_GeneratorContextManagerBase", type(None)),)
