"""What the tests run in worker processes: functions that another process can find."""

from __future__ import annotations

import contextlib
import time

from callboard.actors.errors import TaskCancelled
from callboard.runtime.engines.context import TaskContext


def quick() -> str:
    return "value"


def failing() -> None:
    raise LookupError("told to fail")


def patient(task: TaskContext) -> None:
    while True:
        task.heartbeat("alive")
        time.sleep(0.005)


def stubborn(task: TaskContext) -> None:
    task.heartbeat("alive")
    while True:
        with contextlib.suppress(TaskCancelled):
            time.sleep(60)
