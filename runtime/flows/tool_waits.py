"""A request of a step for a unit of its tool, and the answers to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from ...actors.messages.errors import AttemptOver

if TYPE_CHECKING:
    from ...actors.records.step import StepRecord


class ToolWait:
    """The answers to a step's request. `got` is set when a step that has to wait has the unit."""

    def __init__(self) -> None:
        self.got = anyio.Event()
        self._heard = anyio.Event()
        self._row: StepRecord | None = None
        self._error: Exception | None = None

    def answered(self, row: StepRecord | None, error: Exception | None) -> None:
        """Take the answer whether the step has to wait."""
        self._row, self._error = row, error
        self._heard.set()

    def came(self, _: object, __: Exception | None) -> None:
        """Note that the step has the unit."""
        self.got.set()

    async def answer(self) -> StepRecord:
        """Wait for the answer whether the step has to wait, as its record shows. Raises the error of a refusal."""
        await self._heard.wait()
        if self._row is None:
            raise self._error or AttemptOver("this attempt has ended: its steps use no more tools")
        return self._row
