"""Creation of jobs and workers over HTTP, by Callboard's specifications or by document 002.

Rules
-----
- A job of document 002 has a `task_description`, and nothing about what carries it out: that is the function which the
  application registers as `task_description` (`@runtime.task`); it finds the text in `task.args`. The text is also the
  job's description, up to the longest allowed. A worker of document 002 belongs to a workspace: it has the capability
  "workspace:ID". Both have the lifecycle `fleet`.
- A job with a parent is submitted for the parent's running task, and is cancelled with it.
- Unless the board was made with `commands`, submitted jobs name registered functions only: no commands, no import
  paths, no folders and files of this machine. Otherwise everybody who may submit could run anything.
- The same key is the same job or worker: an id that is not given is made from the key and the caller. The key is kept
  as those of all other commands, and cannot be used for another command.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import quote

import msgspec
from litestar import Response, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import JSONBody

from ....actors.jobs.job import DEEPEST
from ....actors.spec.model import LONGEST_DESCRIPTION, MOST_SLOTS, EngineName, Task, Worker, Workstream
from ....actors.spec.names import name_problem
from ....actors.spec.schema import Finding, beside, clipped, read, where
from ....actors.spec.validate import SpecificationError, findings
from ...commands.idempotency import RequestIdReused, id_of_key, made_key
from ...dispatch.threads import in_thread
from ...documents.settings import Sections, TranslatedSections
from ...errors import JobExists
from ...functions.lifecycles import within
from ...functions.registry import finder_in
from ...jobs.submissions import Existing, Submitted, check_job_id
from ...specfiles.workstream_file import unbearable
from ..http.access import Caller, TheCaller
from ..http.context import Board, TheBoard, path_of
from ..http.problems import FoundWrong, Problem, unfit
from ..read.jobs import view_of
from ..read.shapes import JobView
from .actions import Done, Say, accepting, done_of, trouble, writable
from .idempotency import HEADER, key_of
from .posts import AnyRequest
from .request_body import RequestBody

if TYPE_CHECKING:
    from ....actors.jobs.job import JobActor
    from ...handles.jobs import JobHandle
    from ...services import RuntimeServices

DESCRIBED = "task_description"
"""The name of the function that carries out a task description."""
_DATA = frozenset({"args", "dag"})
"""Keys with data instead of settings."""
LARGEST = 20_000_000
"""Bytes of the largest specification."""
_LARGE = 200  # tasks: a larger specification is checked in a thread
_OF_THIS_MACHINE = frozenset(
    {"command", "shell", "folder", "cwd", "env", "secrets", "file", "changed", "imports", "imports_js"}
)
_FUNCTIONS = frozenset({"run", "members", "lifecycle"})
_LONGEST = 200
_ONLY_WITH = "only where the board is opened with `commands` (`callboard serve --allow-commands`)"


class NewWorker(Say, frozen=True, kw_only=True):
    """A worker to start. All fields but the last are those of a specification.

    workspace_id: document 002's; such a worker needs no other field.
    """

    name: str | None = None
    engine: EngineName | None = None
    capacity: int | None = None
    capabilities: list[str] = msgspec.field(default_factory=list[str])
    recycle_after: int | None = None
    resources: dict[str, float] = msgspec.field(default_factory=dict[str, float])
    labels: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    count: int | None = None
    lifecycle: str | None = None
    metadata: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])
    workspace_id: str | None = None


class NewJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to run. workstream: as in a specification file in JSON; or document 002's `task_description`.

    id: its id, which also is its key; made unless given. existing: what to do if a job has that id already: "join"
    (answer with it if it is the same workstream, otherwise 409), "refuse" (409) or "replace_ended" (replace it if it
    has ended, otherwise 409). worker_count: 1 to 10 slots, which it gets all at once. parent_job_id: the job for whose
    running task it is submitted; depth: if given, one more than the parent's.
    """

    workstream: dict[str, Any] | None = None
    id: str | None = None
    existing: Existing = "join"
    by: str | None = None
    request_id: str | None = None
    task_description: str | None = None
    worker_count: int | None = None
    parent_job_id: str | None = None
    depth: int | None = None


# -- workers -----------------------------------------------------------------------------------------------------------


@post("/api/workers", operation_id="create_worker", dto=RequestBody, return_dto=None, tags=["workers"])
async def create_worker(
    *, board: TheBoard, caller: TheCaller, request: AnyRequest, data: JSONBody[NewWorker | None] = None
) -> Response[Done]:
    """Start a worker, by a specification, or for a workspace of document 002."""
    said = data or NewWorker()
    services = board.services
    given = key_of(request.headers.getall(HEADER, []), said.request_id)
    key = made_key() if given is None else given
    worker = _worker_of(board, said, _made("w_", caller, key))
    by = caller.by(said.by)
    writable(services)
    with board.on_their_way.of(services, key), trouble():
        try:
            await board.runtime.start_worker(worker, reason=said.reason, by=by, request_id=key)
        except SpecificationError as error:
            found = [(one.where.removeprefix("workers[0]").lstrip("."), one) for one in error.findings]
            raise unfit([FoundWrong(place, one.message, one.suggestion) for place, one in found]) from None
        done = await done_of(services, key)
    return Response(done, status_code=201, headers={"Location": f"workers/{quote(done.id, safe='')}"})


def _worker_of(board: Board, said: NewWorker, made: str) -> Worker:
    """Make the requested worker. Raises Problem."""
    name, engine, lifecycle = said.name, said.engine, said.lifecycle
    capabilities = said.capabilities
    wrong: list[FoundWrong] = []
    if said.workspace_id is not None:
        name, engine, lifecycle = name or made, engine or "loop", lifecycle or "fleet"
        capabilities = [*capabilities, f"workspace:{said.workspace_id}"]
        if not said.workspace_id.strip() or not said.workspace_id.isprintable() or len(said.workspace_id) > _LONGEST:
            wrong.append(FoundWrong("workspace_id", f"it must be 1 to {_LONGEST} printable characters"))
    for field, value in (("name", name), ("engine", engine)):
        if value is None:
            wrong.append(FoundWrong(field, f"{field!r} is missing", "every worker needs one, but one of a workspace"))
    if lifecycle is not None and ":" in lifecycle and not board.commands:
        wrong.append(FoundWrong("lifecycle", f"an import path is accepted {_ONLY_WITH}"))
    if wrong or name is None or engine is None:
        raise unfit(wrong)
    return Worker(
        name, engine=engine, capacity=said.capacity, capabilities=capabilities, recycle_after=said.recycle_after,
        resources=said.resources, labels=said.labels, count=said.count, lifecycle=lifecycle, metadata=said.metadata,
    )  # fmt: skip


# -- jobs --------------------------------------------------------------------------------------------------------------


@post(
    "/api/jobs", operation_id="submit_job", dto=RequestBody, return_dto=None, tags=["jobs"],
    request_max_body_size=LARGEST,
    responses={200: ResponseSpec(JobView, description="The job exists already.", generate_examples=False)},
)  # fmt: skip
async def create_job(
    *, board: TheBoard, caller: TheCaller, request: AnyRequest, data: JSONBody[NewJob | None] = None
) -> Response[JobView]:
    """Submit a job: 201, or 200 if it exists already."""
    said = data or NewJob()
    services = board.services
    key = key_of(request.headers.getall(HEADER, []), said.request_id)
    by = caller.by(said.by) if said.by is not None or caller.name is not None else None  # None: no name was given
    tasks: object = (said.workstream or {}).get("tasks")
    large = isinstance(tasks, Sized) and len(tasks) > _LARGE
    workstream = await in_thread("work", _workstream_of, board, said) if large else _workstream_of(board, said)
    job_id = said.id or (None if key is None else _made("j_", caller, key))
    if job_id is not None:
        _check_id(job_id, child=said.parent_job_id is not None)
    _check_existing(said)
    accepting(services)
    with board.on_their_way.of(services, key or services.new_id()), trouble():
        try:
            if said.parent_job_id is None:
                submitted = await services.submitted(workstream, job_id, by, said.existing, key)
            else:
                child = job_id or _made("j_", caller, services.new_id())
                submitted = await _submit_child(services, said, workstream, child, key)
        except JobExists as error:
            if said.id is None:
                raise RequestIdReused(
                    f"The request id {key!r:.80} was given with another job before. {error}"
                ) from None
            raise
    view = await view_of(board, await board.job(submitted.job.id))
    headers = {"Location": f"jobs/{quote(path_of(submitted.job.id), safe=':')}"}
    return Response(view, status_code=201 if submitted.made else 200, headers=headers)


def _workstream_of(board: Board, said: NewJob) -> Workstream:
    """Make the workstream to run. Raises Problem with all faults."""
    if (said.workstream is None) == (said.task_description is None):
        text = "give either a workstream, as in a specification file, or a task_description"
        raise unfit([FoundWrong("workstream", text)])
    if said.workstream is None:
        return _described(board, said)
    for field in ("worker_count", "parent_job_id", "depth"):
        if getattr(said, field) is not None:
            raise unfit([FoundWrong(field, f"{field} is only for a task_description; a workstream has its own")])
    services = board.services
    if (problem := unbearable(said.workstream)) is not None:
        raise unfit([FoundWrong("workstream", f"it {problem}")])
    given = {"name": said.id or "workstream", **said.workstream}
    found = [] if board.commands else list(_of_this_machine(said.workstream, ("workstream",)))
    sections, mistyped = read(given, Sections)
    words = TranslatedSections(sections, given)
    workstream, more = words.workstream, words.findings
    if not found:
        more += words.renamed(_findings(services, workstream))
    if not workstream.tasks:
        more.append(Finding("tasks", "there are no tasks"))
    wrong = [_placed(one) for one in [*mistyped, *beside(mistyped, more)]]
    if wrong := [*found, *wrong]:
        raise unfit(wrong)
    return workstream


def _findings(services: RuntimeServices, workstream: Workstream) -> list[Finding]:
    folder = workstream.folder
    lifecycles = within(services.lifecycles, folder)
    return findings(workstream, bodies=finder_in(services.bodies, folder), lifecycles=lifecycles)


def _placed(one: Finding) -> FoundWrong:
    where = f"workstream.{one.where}" if one.where else "workstream"
    return FoundWrong(where, one.message, one.suggestion)


def _described(board: Board, said: NewJob) -> Workstream:
    """Make the workstream of a job of document 002."""
    wrong: list[FoundWrong] = []
    text = said.task_description or ""
    if not text.strip():
        wrong.append(FoundWrong("task_description", "it is empty"))
    if said.worker_count is not None and not 1 <= said.worker_count <= MOST_SLOTS:
        wrong.append(FoundWrong("worker_count", f"must be 1 to {MOST_SLOTS}, not {said.worker_count}"))
    if said.depth is not None and not 0 <= said.depth <= DEEPEST:
        wrong.append(FoundWrong("depth", f"must be 0 to {DEEPEST}, not {said.depth}"))
    try:
        board.services.bodies.callable_body(DESCRIBED)
    except LookupError:
        why = f"no function can carry it out: the application must register one named {DESCRIBED!r}"
        wrong.append(FoundWrong("task_description", why))
    if wrong:
        raise unfit(wrong)
    if said.depth and said.parent_job_id is None:
        raise unfit([FoundWrong("depth", f"a job without a parent is of depth 0, not {said.depth}")])
    return Workstream(
        DESCRIBED, tasks=[Task("task", run=DESCRIBED, args={DESCRIBED: text})], worker_count=said.worker_count,
        lifecycle="fleet", description=clipped(text, LONGEST_DESCRIPTION),
    )  # fmt: skip


async def _submit_child(
    services: RuntimeServices, said: NewJob, workstream: Workstream, name: str, key: str | None
) -> Submitted:
    """Submit a child job for the running task of its parent."""
    if (child := await _child_of(services, said.parent_job_id or "", workstream, name)) is not None:
        return Submitted(child, made=False)
    parent = services.jobs.living(said.parent_job_id or "")
    if parent is None:
        await services.jobs.find(said.parent_job_id or "")  # raises if there is no such job
        raise Problem(409, "parent", f"job {said.parent_job_id!r:.80} has ended, and can have no more child jobs")
    deeper = parent.record.depth + 1
    if said.depth not in {None, deeper}:
        raise unfit([FoundWrong("depth", f"a child of job {parent.record.id!r} has depth {deeper}, not {said.depth}")])
    if deeper > DEEPEST:
        raise unfit([FoundWrong("depth", f"its depth would be {deeper}; at most {DEEPEST} is allowed")])
    job = await services.submit_child(parent.record.id, _running(parent), workstream, name, key)
    return Submitted(job, made=True)


async def _child_of(services: RuntimeServices, parent: str, workstream: Workstream, name: str) -> JobHandle | None:
    """Find the existing child of that name. Raises JobExists if it has another workstream."""
    reader = services.journal.reader
    its = await services.jobs.record_of(parent)
    first = 1 if its is None else its.first
    for record in await services.read(reader.children, parent):
        if record.id.rpartition("/")[2] == name and record.parent_run >= first:
            encoded = await services.read(reader.spec, record.stream)
            before = None if encoded is None else msgspec.json.decode(encoded, type=Workstream)
            if before is not None and (differs := _differs(before, workstream)) is not None:
                raise JobExists(f"there is a child job {record.id!r} already, with another workstream: {differs}")
            return await services.jobs.find(record.id)
    return None


def _differs(before: Workstream, now: Workstream) -> str | None:
    """Return the difference between two submissions of a child, in words."""
    if before.tasks[0].args != now.tasks[0].args:
        return "its task description is different"
    if before.worker_count != now.worker_count:
        return f"its worker_count was {before.worker_count} and is {now.worker_count} now"
    return None


def _running(parent: JobActor) -> str:
    tasks = [] if parent.stream is None else [one.record for one in parent.stream.tasks]
    running = [one.name for one in tasks if one.state == "running"]
    if len(running) != 1:
        what = "runs no task now" if not running else f"runs {len(running)} tasks now"
        raise Problem(409, "parent", f"job {parent.record.id!r} {what}: a child is submitted for the one running task")
    return running[0]


def _check_existing(said: NewJob) -> None:
    """Refuse `existing` for a job with a parent or without an id. Raises Problem."""
    if said.existing == "join":
        return
    if said.parent_job_id is not None:
        text = "it is only for jobs without a parent: a child job is always joined"
        raise unfit([FoundWrong("existing", text)])
    if said.id is None:
        raise unfit([FoundWrong("existing", "it is about a job with the same id: give an id, too")])


def _check_id(job_id: str, *, child: bool) -> None:
    """Refuse an invalid job id, or name of a child. Raises Problem."""
    if child:
        problem = name_problem(job_id)
        if problem is not None:
            raise unfit([FoundWrong("id", f"{job_id!r:.80} cannot be the name of a child job: it {problem}")])
        return
    try:
        check_job_id(job_id)
    except ValueError as error:
        raise unfit([FoundWrong("id", str(error))]) from None


def _made(prefix: str, caller: Caller, key: str) -> str:
    """Make the id for a key: another caller's key gives another id."""
    return id_of_key(prefix, key, caller.name)


def _of_this_machine(value: object, at: tuple[str | int, ...], inside: str = "") -> Iterator[FoundWrong]:
    """Find commands, import paths, folders and files in a specification."""
    if isinstance(value, list):
        for index, item in enumerate(cast("list[object]", value)):
            yield from _of_this_machine(item, (*at, index), inside)
    if not isinstance(value, dict):
        return
    for key, item in cast("dict[str, object]", value).items():
        here = (*at, key)
        if inside == "tools":  # there keys are names
            yield from _of_this_machine(item, here)
        elif key in _OF_THIS_MACHINE and item not in (None, False):
            yield FoundWrong(where(here), f"{key} is accepted {_ONLY_WITH}")
        elif key in _FUNCTIONS or (key == "wait" and inside == "retry"):
            if isinstance(item, str) and (":" in item or "#" in item):
                yield FoundWrong(where(here), f"an import path is accepted {_ONLY_WITH}: use a registered name")
        elif key not in _DATA:
            yield from _of_this_machine(item, here, key)


HANDLERS = [create_worker, create_job]
