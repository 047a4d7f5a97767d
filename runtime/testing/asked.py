"""Commands of a simulation, and their answers."""

from __future__ import annotations

import asyncio
from typing import Any

from .errors import SimulationError


class Asked:
    """A command that was sent without waiting. A crash leaves it unanswered forever, as it would its caller."""

    def __init__(self, task: asyncio.Task[Any]) -> None:
        self._task = task

    @property
    def answered(self) -> bool:
        """Whether the command was answered, with a value or a refusal."""
        return self._task.done()

    @property
    def error(self) -> BaseException | None:
        """The error of a refusal; None without a refusal, or before the answer."""
        return self._task.exception() if self._task.done() else None

    @property
    def value(self) -> Any:
        """The answer. Raises the error of a refusal, and SimulationError before the answer."""
        if not self._task.done():
            raise SimulationError("the command is not answered yet")
        return self._task.result()
