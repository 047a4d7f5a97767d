"""How a runtime runs queries of its journal that may block: in threads, if the journal uses a disk or a database.

Rules
-----
- The application's queries do not delay the runtime's own, and neither delays the lease of a node. What running bodies
  show delays none of them.
- If the journal does not work while the runtime closes, all waits for an answer are ended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from ..dispatch.threads import ThreadLimit, WaitAbandoned
from ..errors import JournalError
from .contract import Journal

T = TypeVar("T")

APPLICATION_QUERIES = 8
RUNTIME_QUERIES = 4
"""The most queries that run at the same time: of the application, and of the runtime itself."""

UNREAD = (
    "the runtime has closed, and the journal did not answer in time: some earlier events of this job were not read. "
    "Subscribe again in the next runtime: it delivers the job's events from the beginning"
)


class QueryThreads:
    """The queries of one runtime to its journal."""

    def __init__(self, check_here: Callable[[str], None], journal: Journal) -> None:
        self.journal = journal
        self._check_here = check_here
        self._application, self._own, self._lease, self._live = (
            ThreadLimit(APPLICATION_QUERIES),
            ThreadLimit(RUNTIME_QUERIES),
            ThreadLimit(1),
            ThreadLimit(1),
        )

    async def read(self, question: Callable[..., Any], *args: Any) -> Any:
        """Run a query for the application; in a thread, if the journal may block.

        If the caller is cancelled, it no longer waits: the query goes on in its thread, and its result is dropped.
        """
        return await self._ask(self._application.unless_cancelled, question, *args)

    async def read_shared(self, question: Callable[..., Any], *args: Any) -> Any:
        """Run a query of the application to a database that nodes share, about these nodes."""
        return await self._ask(self._own.unless_cancelled, question, *args)

    async def read_own(self, question: Callable[..., Any], *args: Any) -> Any:
        """Run a query for the runtime itself, which the application's queries do not delay.

        The caller waits for the result even if it is cancelled. So nothing is closed while a query still uses it.
        """
        return await self._ask(self._own.patiently, question, *args)

    async def read_lease(self, question: Callable[..., Any], *args: Any) -> Any:
        """Run a query about the lease of this node: no other query delays it."""
        return await self._ask(self._lease.patiently, question, *args)

    async def read_live(self, question: Callable[..., Any], *args: Any) -> Any:
        """Read or write what running bodies show: one question at a time, and none of it delays another query."""
        return await self._ask(self._live.patiently, question, *args)

    async def read_at_last(self, question: Callable[[], T]) -> T:
        """Run a query just before the journal closes. Its caller limits the time, and drops the query after that."""
        if self.journal.durable_medium:
            try:
                return await self._own.unless_cancelled(question)
            except WaitAbandoned:
                raise JournalError(UNREAD) from None
        return question()

    def give_up(self) -> None:
        """End all waits for an answer."""
        for limit in (self._application, self._own, self._lease, self._live):
            limit.give_up()

    async def _ask(self, ask: Callable[..., Awaitable[Any]], question: Callable[..., Any], *args: Any) -> Any:
        if not self.journal.durable_medium:
            return question(*args)
        return await self.in_thread(ask, question, *args)

    async def in_thread(self, ask: Callable[..., Awaitable[Any]], question: Callable[..., Any], *args: Any) -> Any:
        """Run a query in a thread. Raises JournalError if the wait was ended."""
        self._check_here("a runtime")
        try:
            return await ask(question, *args)
        except WaitAbandoned:
            raise JournalError("The journal did not answer in time while the runtime closed.") from None
