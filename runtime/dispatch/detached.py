"""Tasks that belong to the event loop, and not to the task that began them: who begins one may end before it.

Rules
-----
- Nobody waits for such a task, and nobody could catch what it raises: it raises nothing, and says when it is over.
- It has the context variables of who began it.
- When the program ends, it is cancelled: by trio once the main task is over, by `asyncio.run` with all others. It is
  waited for then, so it ends soon.
- trio raises Ctrl+C wherever a program just is, and it may be in such a task. It is meant for the main task, and is
  passed on to it.
"""

from __future__ import annotations

import contextvars
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from ..loaded_modules import under_trio

_tasks: set[object] = set()
"""asyncio itself keeps hold of no task."""


def start_detached(func: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run a coroutine function beside everything else on the present event loop."""
    if under_trio():
        import trio  # noqa: PLC0415 - only under trio, where it is loaded already

        trio.lowlevel.spawn_system_task(func, name=name, context=contextvars.copy_context())
        return
    import asyncio  # noqa: PLC0415 - only where it is the loop

    task = asyncio.get_running_loop().create_task(func(), name=name)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def present_task() -> object:
    """The task that runs here, to be told from others."""
    if under_trio():
        import trio  # noqa: PLC0415 - as above

        return trio.lowlevel.current_task()
    import asyncio  # noqa: PLC0415 - as above

    return asyncio.current_task()


def has_ended(task: object) -> bool:
    """Whether nothing of a task runs any more. Of trio's it is not known, and does not matter there."""
    done: Callable[[], bool] | None = getattr(task, "done", None)
    return done is not None and done()


def all_are_told_to_end() -> bool:
    """Whether each task of the event loop was cancelled, as `asyncio.run` does with all that is left at its end.

    Under trio nobody but its own main task can do so, which then is over: False.
    """
    if under_trio():
        return False
    import asyncio  # noqa: PLC0415 - as above

    return all(task.cancelling() > 0 for task in asyncio.all_tasks())


def pass_on_interrupt() -> None:
    """Have Ctrl+C, which such a task got under trio, raised in the main task. asyncio ends its loop by itself."""
    if under_trio():
        signal.raise_signal(signal.SIGINT)
