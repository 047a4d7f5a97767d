"""Commands in flight, by their keys: of commands with the same key, one runs at a time.

Rules
-----
- A command waits while another command with its key is in flight, and then reads the result of that command.
- A command is in flight until the kernel has answered it, also if its caller has been cancelled meanwhile: the command
  itself goes on.
"""

from __future__ import annotations

from collections.abc import Callable

import anyio


class InFlight:
    """The commands in flight of one kind."""

    def __init__(self) -> None:
        self._marks: dict[str, anyio.Event] = {}

    def __contains__(self, key: str) -> bool:
        """Whether a command with the key is in flight."""
        return key in self._marks

    async def enter(self, key: str) -> Callable[[], None]:
        """Wait for earlier commands with the key. Returns a function to call, once or more, at the end of this one."""
        while (other := self._marks.get(key)) is not None:
            await other.wait()
        mark = self._marks[key] = anyio.Event()

        def over() -> None:
            if self._marks.get(key) is mark:
                del self._marks[key]
            mark.set()

        return over
