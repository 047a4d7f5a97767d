"""Tasks that belong to the event loop, not to the task that started them: that task may end first.

Rules
-----
- No task waits for such a task, and none could catch its errors: so it must raise nothing, and report its own end.
- It has the context variables of the task that started it.
- When the program ends, it is cancelled: by trio once the main task is over, by `asyncio.run` with all others. Both
  wait for it then, so it must end soon.
- trio raises KeyboardInterrupt (Ctrl+C) in the code that runs at that moment, perhaps in such a task. It is meant for
  the main task, and is passed on to it.
"""

from __future__ import annotations

import contextvars
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from ..loaded_modules import under_trio

_tasks: set[object] = set()
"""Strong references: asyncio itself keeps weak ones only."""


def start_detached(func: Callable[[], Coroutine[Any, Any, None]], name: str) -> None:
    """Run a coroutine function in a task of its own on the present event loop."""
    if under_trio():
        import trio  # noqa: PLC0415 - only under trio, where it is loaded already

        trio.lowlevel.spawn_system_task(func, name=name, context=contextvars.copy_context())
        return
    import asyncio  # noqa: PLC0415 - only where it is the loop

    task = asyncio.get_running_loop().create_task(func(), name=name)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)


def present_task() -> object:
    """The task that runs here, for comparing it with others."""
    if under_trio():
        import trio  # noqa: PLC0415 - as above

        return trio.lowlevel.current_task()
    import asyncio  # noqa: PLC0415 - as above

    return asyncio.current_task()


def has_ended(task: object) -> bool:
    """Whether a task has ended. Always False for a task of trio, where no caller needs it."""
    done: Callable[[], bool] | None = getattr(task, "done", None)
    return done is not None and done()


def all_are_told_to_end() -> bool:
    """Whether each task of the event loop was cancelled, as `asyncio.run` does with all that is left at its end.

    False under trio, where that happens only after the main task has ended.
    """
    if under_trio():
        return False
    import asyncio  # noqa: PLC0415 - as above

    return all(task.cancelling() > 0 for task in asyncio.all_tasks())


def pass_on_interrupt() -> None:
    """Raise a Ctrl+C that such a task got under trio in the main task. asyncio ends its loop by itself."""
    if under_trio():
        signal.raise_signal(signal.SIGINT)
