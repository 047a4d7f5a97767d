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

import msgspec

from ...actors.messages.notices import NoticeRecord
from ...actors.records.transition import Transitioned
from ...actors.spec.lifecycles import Lifecycles
from ...actors.spec.model import Worker, Workstream
from ...actors.spec.schema import short
from ...actors.spec.validate import SpecificationError
from ...actors.times import Duration, seconds
from ..commands.author import name_of
from ..engines.process.paths import Paths
from ..functions.registry import prepared
from ..handles.approvals import PendingApproval
from ..jobs.submissions import Existing, check_existing, check_job_id
from ..journal.contract import Health
from ..observation.events import BUFFER
from ..observation.filters import Event, Filters
from ..services import check_type
from .core import PAGE, ClientCore
from .entities import RemoteBreaker, RemoteMachine, RemoteWorker
from .handles import RemoteJob
from .link import Link
from .stream import RemoteEvents
from .views import job_of, kept_notice_of

if TYPE_CHECKING:
    import httpx

TIMEOUT = 30.0
PATIENCE = 60.0
"""The default limits in seconds: `TIMEOUT` of one try of a request, `PATIENCE` of all tries."""


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
        limits = seconds(timeout), None if patience is None else seconds(patience)
        self._core = ClientCore(Link(url, token=token, timeout=limits[0], patience=limits[1], transport=transport))

    def __repr__(self) -> str:
        return f"<Client {self._core.link.url}>"

    async def __aenter__(self) -> Self:
        await self._core.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._core.leave()

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
            view = await self._core.act("jobs", said, request_id)
        return RemoteJob(self._core, job_of(view), await self._core.few(view))

    async def job(self, job_id: str) -> RemoteJob:
        """The handle of a job, whether it has ended or not. Raises LookupError if there is no such job."""
        check_type(job_id, str, "a job's id is a str")
        return RemoteJob(self._core, *await self._core.look_at(job_id, whole=False))

    async def approvals(self) -> list[PendingApproval]:
        """The pending approvals of all jobs, each with its approvers and its deadline."""
        return await self._core.approvals()

    # -- workers, breakers, machines -----------------------------------------------------------------------------------

    async def workers(self) -> list[RemoteWorker]:
        """All workers, ended ones too, in the order of their first start."""
        views = self._core.link.pages("workers", limit=PAGE)
        return [RemoteWorker(self._core, view["name"], view) async for view in views]

    def worker(self, name: str) -> RemoteWorker:
        """The worker with the given name. If there is none, the first verb of the handle raises LookupError."""
        return RemoteWorker(self._core, name)

    async def start_worker(self, worker: Worker, *, request_id: str | None = None) -> list[RemoteWorker]:
        """As `Runtime.start_worker`."""
        check_type(worker, Worker, "start_worker takes a Worker")
        with _placed(lambda where: f"workers[0].{where}", "the runtime's workers"):
            await self._core.act("workers", msgspec.to_builtins(worker), request_id)
        started = [RemoteWorker(self._core, one.name) for one in worker.each()]
        for one in started:
            await one.refresh()
        return started

    async def breakers(self) -> list[RemoteBreaker]:
        """The circuit breakers of all tools that a workstream has used or that the runtime's `tools` name."""
        views = self._core.link.pages("breakers", limit=PAGE)
        return [RemoteBreaker(self._core, view["name"], view) async for view in views]

    def breaker(self, tool: str) -> RemoteBreaker:
        """The circuit breaker of a tool. If there is none, the first verb of the handle raises LookupError."""
        return RemoteBreaker(self._core, tool)

    async def machines(self) -> list[RemoteMachine]:
        """The `MachineActor`s that have not ended or have ended lately, in the order of their creation."""
        views = self._core.link.pages("machines", limit=PAGE)
        return [RemoteMachine(self._core, view["name"], view) async for view in views]

    def machine(self, name: str) -> RemoteMachine:
        """The `MachineActor` of that name, ended or not. If there is none, the first verb raises LookupError."""
        return RemoteMachine(self._core, name)

    # -- looking -------------------------------------------------------------------------------------------------------

    async def metrics(self) -> dict[str, Any]:
        """The metrics of the runtime since it was opened, and of its present state, as series."""
        metrics: dict[str, Any] = await self._core.link.get("metrics")
        return metrics

    async def kept_notices(
        self, *, about: str | None = None, since: float = 0.0, limit: int = 100
    ) -> list[NoticeRecord]:
        """The notices above info in the runtime's journal, as `Runtime.kept_notices` returns them."""
        asked: dict[str, Any] = {"since": since} if about is None else {"since": since, "about": about}
        found: list[NoticeRecord] = []
        if limit > 0:
            async for view in self._core.link.pages("notices", limit=min(limit, PAGE), **asked):
                found.append(kept_notice_of(view))
                if len(found) >= limit:
                    break
        return found

    async def health(self) -> Health:
        """Whether the runtime's journal can write, and if not, why not."""
        health = await self._core.link.get("health")
        # a draining runtime can write
        return Health(health["status"] != "degraded", health.get("reason"), health.get("since"))

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
        return self._core.listen(filters, notices=notices, size=size)


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
