"""How a runtime runs queries of its journal that may block: in threads, if the journal uses a disk or a database.

Rules
-----
- The application's queries do not delay the runtime's own, and neither delays the lease of a node.
- If the journal does not work while the runtime closes, all waits for an answer are ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..dispatch.threads import GivenUp, Lane
from ..journal.contract import Journal, JournalError
from ..observation.events import UNREAD
from .standing import Standing

T = TypeVar("T")

QUESTIONS = 8
OWN_QUESTIONS = 4
"""How many questions to the journal may be asked at a time, by the application, and by the runtime itself."""


class Questions:
    """The queries of one runtime to its journal."""

    def __init__(self, standing: Standing, journal: Journal) -> None:
        self.journal = journal
        self._standing = standing
        self._application, self._own, self._lease = Lane(QUESTIONS), Lane(OWN_QUESTIONS), Lane(1)

    async def read(self, question: Callable[..., Any], *args: Any) -> Any:
        """Ask the journal something, where that may block in a thread. Who is cancelled waits no longer, whether the
        journal answers or not: what is asked goes on in its thread, and its answer is nobody's.
        """
        return await self._ask(self._application.unless_cancelled, question, *args)

    async def read_shared(self, question: Callable[..., Any], *args: Any) -> Any:
        """The same for what the application has to ask of a database that nodes share."""
        return await self._ask(self._own.unless_cancelled, question, *args)

    async def read_own(self, question: Callable[..., Any], *args: Any) -> Any:
        """Ask what the runtime itself has to know: no question to the journal holds it up. It is waited for, whoever is
        cancelled: what closes the runtime closes nothing of which it is still asked.
        """
        return await self._ask(self._own.patiently, question, *args)

    async def read_lease(self, question: Callable[..., Any], *args: Any) -> Any:
        """The same for the lease of this node: no other question at all holds it up."""
        return await self._ask(self._lease.patiently, question, *args)

    async def read_at_last(self, question: Callable[[], T]) -> T:
        """The same for what is asked before the journal closes: who waits for it has a limit, and leaves it then."""
        if self.journal.durable_medium:
            try:
                return await self._own.unless_cancelled(question)
            except GivenUp:
                raise JournalError(UNREAD) from None
        return question()

    def give_up(self) -> None:
        """End all waits for an answer."""
        for lane in (self._application, self._own, self._lease):
            lane.give_up()

    async def _ask(self, ask: Callable[..., Awaitable[Any]], question: Callable[..., Any], *args: Any) -> Any:
        if not self.journal.durable_medium:
            return question(*args)
        return await self.in_lane(ask, question, *args)

    async def in_lane(self, ask: Callable[..., Awaitable[Any]], question: Callable[..., Any], *args: Any) -> Any:
        """Run a query in a thread of a lane. Raises JournalError if the wait was ended."""
        self._standing.check_here("a runtime")
        try:
            return await ask(question, *args)
        except GivenUp:
            raise JournalError("The journal was asked for too long while the runtime was left.") from None
