"""Commands that are on their way, by what they are known by: of those that are the same, one at a time.

Rules
-----
- Who comes while another one is on its way waits, and then looks what came of it.
- One is on its way until the kernel has answered it, also where its caller has been cancelled meanwhile: what it was
  sent for goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio


class InFlight:
    """Those of one kind."""

    def __init__(self) -> None:
        self._marks: dict[str, anyio.Event] = {}

    def __contains__(self, key: str) -> bool:
        """Whether one is on its way."""
        return key in self._marks

    async def enter(self, key: str) -> Callable[[], None]:
        """Wait for those who came before. Returns what is to be called, once or more, when this one is over."""
        while (other := self._marks.get(key)) is not None:
            await other.wait()
        mark = self._marks[key] = anyio.Event()

        def over() -> None:
            if self._marks.get(key) is mark:
                del self._marks[key]
            mark.set()

        return over
