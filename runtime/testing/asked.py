"""Commands that were given in a simulation."""

from __future__ import annotations

import asyncio
from typing import Any

from .errors import SimulationError


class Asked:
    """A command that was given, and is not waited for. A crash leaves it open for ever, as it would its caller."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    @property
    def answered(self) -> bool:
        """Whether it was answered, with a value or a refusal."""
        return self._task.done()

    @property
    def error(self) -> BaseException | None:
        """What it was refused with; None where it was not, or not yet."""
        return self._task.exception() if self._task.done() else None

    @property
    def value(self) -> Any:
        """Its answer. Raises what it was refused with, SimulationError where there is none yet."""
        if not self._task.done():
            raise SimulationError("it was not answered yet")
        return self._task.result()
