"""The client of a runtime in another process. It has the verbs of `Runtime`.

    async with Client("http://127.0.0.1:8642") as runtime:
        job = await runtime.submit(Workstream("release", tasks=[Task("build", run="steps:build")]))
        outcome = await job.wait()

Rules
-----
- The verbs are those of `Runtime`, with the same names, answers and errors. Verbs that only make sense inside the
  runtime's process (`task`, `spawn`, `drain`) are missing here. Values that the runtime returns from memory must be
  awaited here (docs/client.md has the list).
- Each verb returns when its effect is durable in the runtime, and takes effect once: without a `request_id` it makes
  its own. A refused command is not kept: a command with the same `request_id` is judged again by the state of that
  time.
- The client works on asyncio and trio. It opens its connections at the first request, and closes them when it is left.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack, overload

import anyio
import msgspec
from anyio.abc import TaskGroup

from ...actors.messages.notices import NoticeRecord
from ...actors.records.entities import JobRecord
from ...actors.records.task import TaskRecord
from ...actors.records.transition import Transitioned
from ...actors.spec.lifecycles import Lifecycles
from ...actors.spec.model import Worker, Workstream
from ...actors.spec.schema import short
from ...actors.spec.validate import SpecificationError
from ...actors.times import Duration, seconds
from ..commands.author import name_of
from ..commands.idempotency import check_request_id
from ..commands.submissions import Existing, check_existing, check_job_id
from ..engines.process.paths import Paths
from ..functions.registry import prepared
from ..handles.approvals import PendingApproval
from ..journal.contract import Health
from ..observation.events import BUFFER
from ..observation.filters import Event, Filters, everything, wanted_by
from ..services import check_type
from .handles import FEW, RemoteJob
from .link import Link, place
from .named import RemoteBreaker, RemoteMachine, RemoteWorker
from .stream import Last, Pump, RemoteEvents
from .trouble import ServerError
from .views import job_of, kept_notice_of, task_of

if TYPE_CHECKING:
    import httpx

TIMEOUT = 30.0
PATIENCE = 60.0
"""The default limits in seconds: `TIMEOUT` of one try of a request, `PATIENCE` of all tries."""
PAGE = 500
"""The number of items in one page of a list."""
MANY = 10_000
"""The number of tasks in one page."""
TAIL = 8192
"""The number of bytes that the client reads of a command's output, to find its last line."""


class Client:
    """A client of a runtime in another process, by the address of its board.

    url: such as "http://127.0.0.1:8642", with the prefix at which the board is mounted. token: the access token, if the
    board requires one. timeout: the duration of one try of a request. patience: the duration for which the client
    repeats a request to a server that does not answer, before it raises ServerUnreachable; `wait` and `events` also
    wait so long for a server to come back; None: for ever. transport: an httpx transport that replaces the network, for
    tests. Raises ValueError for an invalid address or duration. Entering raises ServerUnreachable, AccessRefused, and
    ServerError if there is no board at the address.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        timeout: Duration = TIMEOUT,
        patience: Duration | None = PATIENCE,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.link = Link(
            url, token=token, timeout=seconds(timeout), patience=None if patience is None else seconds(patience),
            transport=transport,
        )  # fmt: skip
        self._group: TaskGroup
        self._opening: set[Pump] = set()
        self._open = False

    def __repr__(self) -> str:
        return f"<Client {self.link.url}>"

    async def __aenter__(self) -> Self:
        await self.link.client.__aenter__()
        try:
            await self._meet()
            self._group = anyio.create_task_group()
            await self._group.__aenter__()
        except BaseException:
            await self.link.close()
            raise
        self._open = True
        return self

    async def _meet(self) -> None:
        try:
            await self.link.get("health")
        except (LookupError, msgspec.DecodeError):
            text = f"there is no board at {self.link.url}: is that its address, with the prefix that it is mounted at?"
            raise ServerError(text, 404) from None

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False
        self._group.cancel_scope.cancel()
        try:
            await self._group.__aexit__(None, None, None)
        finally:
            with anyio.CancelScope(shield=True):
                await self.link.close()

    # -- jobs ----------------------------------------------------------------------------------------------------------

    async def submit(
        self,
        workstream: Workstream,
        *,
        id: str | None = None,  # noqa: A002 - the field's word
        by: str | None = None,
        existing: Existing = "join",
        request_id: str | None = None,
    ) -> RemoteJob:
        """As `Runtime.submit`. The client sends functions as import paths, and the runtime imports them."""
        check_type(workstream, Workstream, "submit takes a Workstream")
        if id is not None:
            check_job_id(id)
        if by is not None:
            name_of(by)
        existing = check_existing(existing, id)
        _, encoded = await prepared(workstream, Paths(), durable=True, lifecycles=Lifecycles(resolve=None))
        said = {"workstream": msgspec.Raw(encoded), "id": id, "by": by}
        if existing != "join":  # the default is not sent, since older servers do not know the field
            said["existing"] = existing
        with _placed(_in_workstream, f"workstream {short(workstream.name)}"):
            view = await self.act("jobs", said, request_id)
        return RemoteJob(self, job_of(view), await self._few(view))

    async def job(self, job_id: str) -> RemoteJob:
        """The handle of a job, whether it has ended or not. Raises LookupError if there is no such job."""
        check_type(job_id, str, "a job's id is a str")
        return RemoteJob(self, *await self.look_at(job_id, whole=False))

    async def approvals(self) -> list[PendingApproval]:
        """The pending approvals of all jobs, each with its approvers and its deadline."""
        return [msgspec.convert(view, PendingApproval) async for view in self.link.pages("approvals", limit=PAGE)]

    # -- workers, breakers, machines -----------------------------------------------------------------------------------

    async def workers(self) -> list[RemoteWorker]:
        """All workers, ended ones too, in the order of their first start."""
        return [RemoteWorker(self, view["name"], view) async for view in self.link.pages("workers", limit=PAGE)]

    def worker(self, name: str) -> RemoteWorker:
        """The worker with the given name. If there is none, the first verb of the handle raises LookupError."""
        return RemoteWorker(self, name)

    async def start_worker(self, worker: Worker, *, request_id: str | None = None) -> list[RemoteWorker]:
        """As `Runtime.start_worker`."""
        check_type(worker, Worker, "start_worker takes a Worker")
        with _placed(lambda where: f"workers[0].{where}", "the runtime's workers"):
            await self.act("workers", msgspec.to_builtins(worker), request_id)
        started = [RemoteWorker(self, one.name) for one in worker.each()]
        for one in started:
            await one.refresh()
        return started

    async def breakers(self) -> list[RemoteBreaker]:
        """The circuit breakers of all tools that a workstream has used or that the runtime's `tools` name."""
        return [RemoteBreaker(self, view["name"], view) async for view in self.link.pages("breakers", limit=PAGE)]

    def breaker(self, tool: str) -> RemoteBreaker:
        """The circuit breaker of a tool. If there is none, the first verb of the handle raises LookupError."""
        return RemoteBreaker(self, tool)

    async def machines(self) -> list[RemoteMachine]:
        """The `MachineActor`s that have not ended or have ended lately, in the order of their creation."""
        return [RemoteMachine(self, view["name"], view) async for view in self.link.pages("machines", limit=PAGE)]

    def machine(self, name: str) -> RemoteMachine:
        """The `MachineActor` of that name, ended or not. If there is none, the first verb raises LookupError."""
        return RemoteMachine(self, name)

    # -- looking -------------------------------------------------------------------------------------------------------

    async def metrics(self) -> dict[str, Any]:
        """The metrics of the runtime since it was opened, and of its present state, as series."""
        told: dict[str, Any] = await self.link.get("metrics")
        return told

    async def kept_notices(
        self, *, about: str | None = None, since: float = 0.0, limit: int = 100
    ) -> list[NoticeRecord]:
        """The notices above info in the runtime's journal, as `Runtime.kept_notices` returns them."""
        asked: dict[str, Any] = {"since": since} if about is None else {"since": since, "about": about}
        found: list[NoticeRecord] = []
        if limit > 0:
            async for view in self.link.pages("notices", limit=min(limit, PAGE), **asked):
                found.append(kept_notice_of(view))
                if len(found) >= limit:
                    break
        return found

    async def health(self) -> Health:
        """Whether the runtime's journal can write, and if not, why not."""
        told = await self.link.get("health")
        # a draining runtime can write
        return Health(told["status"] != "degraded", told.get("reason"), told.get("since"))

    @overload
    def events(
        self, *, notices: Literal[True] = True, size: int = BUFFER, **filters: Unpack[Filters]
    ) -> RemoteEvents[Event]: ...
    @overload
    def events(
        self, *, notices: Literal[False], size: int = BUFFER, **filters: Unpack[Filters]
    ) -> RemoteEvents[Transitioned]: ...
    def events(self, *, notices: bool = True, size: int = BUFFER, **filters: Unpack[Filters]) -> RemoteEvents[Any]:
        """Subscribe to every transition and notice from now on, with the filters of `Runtime.events`.

        The subscription survives restarts of the server.
        """
        return self.listen(filters, notices=notices, size=size)

    # -- for the handles -----------------------------------------------------------------------------------------------

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
            raise RuntimeError(f"{self!r} is not open: enter it with `async with`, and use it inside")
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

    async def look_at(self, job_id: str, *, whole: bool) -> tuple[JobRecord, list[TaskRecord] | None]:
        """Request the record of a job, and the records of its tasks if they are few (whole: in any case).

        Raises LookupError.
        """
        view = await self.link.get(f"jobs/{place(job_id)}")
        return job_of(view), await (self.tasks_of(job_id) if whole else self._few(view))

    async def _few(self, view: dict[str, Any]) -> list[TaskRecord] | None:
        return None if view["total"] > FEW else await self.tasks_of(view["id"])

    async def tasks_of(self, job_id: str, run: int | None = None) -> list[TaskRecord]:
        """The records of all tasks of a job's run, by default of the present run."""
        given: dict[str, Any] = {} if run is None else {"run": run}
        return [task_of(view) async for view in self.link.pages(f"jobs/{place(job_id)}/tasks", limit=MANY, **given)]

    async def text(self, path: str) -> str:
        """The last `TAIL` bytes of the text at a path."""
        answer = await self.link.ask("GET", path, headers={"Accept": "text/plain", "Range": f"bytes=-{TAIL}"})
        return answer.content.decode(errors="replace")


@contextmanager
def _placed(place: Callable[[str], str], source: str) -> Generator[None]:
    """Make findings name the place in the caller's argument, and not in the request that was sent."""
    try:
        yield
    except SpecificationError as error:
        found = [msgspec.structs.replace(one, where=place(one.where)) for one in error.findings]
        raise SpecificationError(found, source) from None


def _in_workstream(where: str) -> str:
    return where.removeprefix("workstream").removeprefix(".")
