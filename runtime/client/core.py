"""The part of a client that is not for users: its connections and streams, for the client itself and its handles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import msgspec
from anyio.abc import TaskGroup

from ...actors.records.entities import JobRecord
from ..commands.idempotency import check_request_id
from ..handles.approvals import PendingApproval
from ..observation.events import BUFFER
from ..observation.filters import Event, Filters, everything, wanted_by
from .link import Link, place
from .server_errors import ServerError
from .stream import Last, Pump, RemoteEvents
from .views import SeenTask, job_of, seen_task_of

PAGE = 500
"""The number of items in one page of a list."""
MANY = 10_000
"""The number of tasks in one page."""
FEW = 500
"""The most tasks of a job that the client requests together with the job."""
TAIL = 8192
"""The number of bytes that the client reads of a command's output, to find its last line."""


class ClientCore:
    """The connections and streams of one client."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._group: TaskGroup
        self._opening: set[Pump] = set()
        self._open = False

    async def enter(self) -> None:
        """Open the connections. Raises ServerUnreachable, AccessRefused, and ServerError if there is no board."""
        await self.link.client.__aenter__()
        try:
            await self._meet()
            self._group = anyio.create_task_group()
            await self._group.__aenter__()
        except BaseException:
            await self.link.close()
            raise
        self._open = True

    async def _meet(self) -> None:
        try:
            await self.link.get("health")
        except (LookupError, msgspec.DecodeError):
            text = f"there is no board at {self.link.url}: is that its address, with the prefix that it is mounted at?"
            raise ServerError(text, 404) from None

    async def leave(self) -> None:
        """End the streams, and close the connections."""
        self._open = False
        self._group.cancel_scope.cancel()
        try:
            await self._group.__aexit__(None, None, None)
        finally:
            with anyio.CancelScope(shield=True):
                await self.link.close()

    async def act(self, path: str, said: dict[str, Any], request_id: str | None) -> Any:
        """Send a command once, after all streams that were requested before it are open. Returns the answer."""
        if request_id is not None:
            check_request_id(request_id)
        await self.opened()
        return await self.link.post(path, said, request_id)

    async def opened(self) -> None:
        """Wait until every requested stream is open or has failed to open."""
        for pump in list(self._opening):
            await pump.opened.wait()

    def listen(
        self,
        filters: Filters,
        *,
        notices: bool = True,
        size: int = BUFFER,
        after: int | None = None,
        seen: Callable[[Event], object] = everything,
        last: Last | None = None,
    ) -> RemoteEvents[Any]:
        """Start a stream of the events that match the filters.

        after: the number of the transition after which the stream begins; None: it begins now. seen: a function that
        gets each event when it arrives. last: a function that tells whether an event is the last. Raises TypeError,
        ValueError.
        """
        if not self._open:
            raise RuntimeError(f"<Client {self.link.url}> is not open: enter it with `async with`, and use it inside")
        wanted = wanted_by(filters, notices=notices)
        events: RemoteEvents[Any] = RemoteEvents(size)
        given: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
        params = {name: [value] if isinstance(value, str) else sorted(value) for name, value in given.items()}
        pump = Pump(self.link, events, params, wanted, after, seen, last)
        self._opening.add(pump)
        self._group.start_soon(self._run, pump)
        return events

    async def _run(self, pump: Pump) -> None:
        try:
            await pump.run()
        finally:
            self._opening.discard(pump)

    async def look_at(self, job_id: str, *, whole: bool) -> tuple[JobRecord, list[SeenTask] | None]:
        """Request the record of a job, and its tasks if they are few (whole: in any case).

        Raises LookupError.
        """
        view = await self.link.get(f"jobs/{place(job_id)}")
        return job_of(view), await (self.tasks_of(job_id) if whole else self.few(view))

    async def few(self, view: dict[str, Any]) -> list[SeenTask] | None:
        """A job's tasks, if they are few."""
        return None if view["total"] > FEW else await self.tasks_of(view["id"])

    async def tasks_of(self, job_id: str, run: int | None = None) -> list[SeenTask]:
        """All tasks of a job's run, by default of the present run."""
        given: dict[str, Any] = {} if run is None else {"run": run}
        return [
            seen_task_of(view) async for view in self.link.pages(f"jobs/{place(job_id)}/tasks", limit=MANY, **given)
        ]

    async def text(self, path: str) -> str:
        """The last `TAIL` bytes of the text at a path."""
        answer = await self.link.ask("GET", path, headers={"Accept": "text/plain", "Range": f"bytes=-{TAIL}"})
        return answer.content.decode(errors="replace")

    async def approvals(self) -> list[PendingApproval]:
        """The pending approvals of all jobs."""
        return [msgspec.convert(view, PendingApproval) async for view in self.link.pages("approvals", limit=PAGE)]
