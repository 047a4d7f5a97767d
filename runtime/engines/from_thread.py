"""Awaits a coroutine of the library on the event loop, for a body that runs in a thread."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from ...actors.messages.errors import TaskCancelled
from ...actors.user_code import is_a
from ..dispatch.abandoned_threads import running_body
from ..dispatch.runners import BodyCancelled, RunnerPool, Running

if TYPE_CHECKING:
    from .connection import Connection

T = TypeVar("T")


def await_on_loop(
    post: Callable[..., object], runners: RunnerPool, func: Callable[[], Awaitable[T]], connection: Connection | None
) -> T:
    """Run `func` on the event loop, and wait in this thread. connection: of the body that waits, if it has a context.

    post: calls a function on the loop soon, from any thread. On the loop, the code still belongs to the body: what it
    starts is attributed to the body, and a step finds its flow.

    Raises what `func` raises, TaskCancelled if the body's task is cancelled meanwhile, and what a handler of signals
    raises in this thread; then `func` was cancelled.
    """
    done = threading.Event()
    begun: list[Running[T]] = []
    found: list[T] = []
    errors: list[BaseException] = []
    _, about, call = running_body.get((None, "", None))

    def over(value: T | None, error: BaseException | None) -> None:
        if error is None:
            found.append(value)  # type: ignore[arg-type] # the result is None only if T is
        else:
            errors.append(error)
        done.set()

    def begin() -> None:
        try:
            running = runners.submit(func, over, context=runners.context_of(about, adds=call))
        except Exception as error:  # the pool is closing
            over(None, error)
            return
        begun.append(running)
        if connection is not None:
            connection.when_cancelled(partial(post, running.cancel))  # a worker process is told in another thread

    def leave() -> None:
        for running in begun:
            running.cancel()
        if not begun:  # `begin` was not posted, since it would have run before
            done.set()

    try:
        post(begin)
        done.wait()
    except BaseException as error:  # a signal's handler has raised: the body gives up what it waits for
        post(leave)
        if not is_a(error, TaskCancelled):  # else it has little time to clean up
            done.wait()
        raise
    if errors:
        if isinstance(errors[0], BodyCancelled):
            name = "" if connection is None else f" {connection.task!r}"
            raise TaskCancelled(f"the task{name} was cancelled")
        raise errors[0]
    return found[0]
