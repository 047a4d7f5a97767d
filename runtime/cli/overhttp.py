"""The questions and commands of the command line over a board's HTTP interface.

Rules
-----
- This reader makes its own keys: a run of a job gets a key when it is first read, and later questions name the run by
  it.
- Only a running program answers: so no command waits in an inbox, and archived jobs are not shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...actors.records.step import PUBLISH
from ...actors.spec.model import Task, Workstream
from ..calling import Progress
from ..client import views
from ..client.link import Link, place
from ..client.server_errors import AccessRefused, ServerError, ServerUnreachable
from ..commands.verbs import VERBS
from ..commands.wire_errors import CommandAnswer, answer_to
from ..errors import JournalUnwritable, RuntimeClosed
from .acting import SentCommand
from .command_errors import FAILED, CommandError

if TYPE_CHECKING:
    from ...actors.messages.notices import NoticeRecord
    from ...actors.records.entities import (
        ApprovalRecord,
        BreakerRecord,
        JobRecord,
        MachineRecord,
        OutboxRow,
        WorkerRecord,
        WorkstreamRecord,
    )
    from ...actors.records.step import StepRecord
    from ...actors.records.task import TaskRecord
    from ...actors.records.transition import Transitioned
    from ..journal.contract import ArchivedJob, InboxRow
    from .boards import Board

T = TypeVar("T")
PAGE = 500


class RemoteReader:
    """Reads a board with the questions of a journal."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._runs: list[WorkstreamRecord] = []  # a run's key is its place here, from 1
        self._flows: list[TaskRecord] = []  # likewise, of tasks whose bodies have taken steps
        self._progress: dict[str, Progress] = {}  # of running bodies, by the ids of their tasks

    def job(self, job_id: str) -> JobRecord | None:
        """The job with that id, ended or not."""
        view = self._get(f"jobs/{place(job_id)}") if job_id else None
        return None if view is None else views.job_of(view)

    def jobs(self, *, states: Sequence[str] = (), limit: int = 100) -> list[JobRecord]:
        """Jobs, newest first; only those in `states` if any are given."""
        return [views.job_of(view) for view in self._list("jobs", limit, state=list(states))]

    def children(self, job_id: str) -> list[JobRecord]:
        """The jobs that tasks of that job have submitted, oldest first."""
        view = self._get(f"jobs/{place(job_id)}")
        children: list[str] = [] if view is None else view["children"]
        return [job for job in map(self.job, children) if job is not None]

    def workstreams(self, job_id: str) -> list[WorkstreamRecord]:
        """The runs of a job, oldest first."""
        runs: list[WorkstreamRecord] = []
        for view in self._list(f"jobs/{place(job_id)}/workstreams"):
            run = views.workstream_of({**view, "job_id": job_id}, len(self._runs) + 1)
            self._runs.append(run)
            runs.append(run)
        return runs

    def spec(self, workstream: int) -> bytes | None:
        """The tasks of a workstream's specification: their names, dependencies and tools.

        Raises CommandError if the run is not known: such a caller needs the whole specification.
        """
        if not workstream:
            raise CommandError("The HTTP interface does not show a job's specification: use --journal for --plan.")
        tasks = [
            Task(view["name"], depends_on=view["depends_on"], after=view["after"], tool=view["tool"])
            for view in self._tasks(workstream)
        ]
        return msgspec.json.encode(Workstream(self._runs[workstream - 1].name, tasks=tasks))

    def tasks(self, workstream: int) -> list[TaskRecord]:
        """The tasks of the workstream with that key, in the order of its specification."""
        return [self._task(view) for view in self._tasks(workstream)]

    def _task(self, view: dict[str, Any]) -> TaskRecord:
        task = views.task_of(view)
        if (progress := views.progress_of(view)) is None:
            self._progress.pop(task.id, None)
        else:
            self._progress[task.id] = progress
        if not view.get("flow"):
            return task
        self._flows.append(task)
        return msgspec.structs.replace(task, flow=len(self._flows))

    def progress(self, task: TaskRecord) -> Progress | None:
        """The progress that the task's running body had reported when the task was read last."""
        return self._progress.get(task.id)

    def _tasks(self, workstream: int) -> list[dict[str, Any]]:
        run = self._runs[workstream - 1]
        return self._list(f"jobs/{place(run.job_id)}/tasks", run=run.run)

    def steps(self, flow: int) -> list[StepRecord]:
        """The steps of the task that has that number of a flow, in the order in which they were first kept."""
        if not flow:
            return []
        task = self._flows[flow - 1]
        path = f"jobs/{place(task.job_id)}/tasks/{place(task.name)}/steps"
        return [views.step_of(view) for view in self._list(path)]

    def publications(self, flow: int) -> list[StepRecord]:
        """The steps of that task that published a value, oldest first."""
        return [step for step in self.steps(flow) if step.name.startswith(PUBLISH)]

    def approvals(self, workstream: int) -> list[ApprovalRecord]:
        """The open approvals that bodies of the workstream with that key ask for, oldest first."""
        job_id = self._runs[workstream - 1].job_id
        return [
            views.approval_of(view)
            for view in self._list(f"jobs/{place(job_id)}/approvals")
            if view["kind"] == "approval"
        ]

    def workers(self) -> list[WorkerRecord]:
        """The last incarnation of every worker: a board shows no others."""
        return [views.worker_of(view) for view in self._list("workers")]

    def breakers(self) -> list[BreakerRecord]:
        """Every breaker."""
        return [views.breaker_of(view) for view in self._list("breakers")]

    def machine(self, name: str) -> MachineRecord | None:
        """The `MachineActor` of that name, ended or not."""
        view = self._get(f"machines/{place(name)}")
        return None if view is None else views.machine_of(view)

    def machines(self, *, living: bool = False, limit: int | None = None) -> list[MachineRecord]:
        """All `MachineActor`s, newest first; with `living`, only those that have not ended."""
        found = [views.machine_of(view) for view in self._list("machines", limit)]
        return [one for one in found if not living or one.finished_at is None]

    def outbox(self) -> list[OutboxRow]:
        """The owed hooks, as far as the board shows them."""
        return [views.outbox_of(view) for view in self._list("owed")]

    def notices(
        self, *, about: str | None = None, since: float = 0.0, first: int = 0, limit: int = 100
    ) -> list[NoticeRecord]:
        """Kept notices, the latest first."""
        asked: dict[str, Any] = {"since": since} if about is None else {"since": since, "about": about}
        return [views.kept_notice_of(view) for view in self._list("notices", first + limit, **asked)][first:]

    def transitions(
        self,
        *,
        entity_id: str | None = None,
        job_id: str | None = None,
        after: int = 0,
        limit: int | None = None,
    ) -> Iterator[Transitioned]:
        """Transitions in order, with numbers above `after`; of one entity, or of a job and everything in it."""
        given = {"entity": entity_id, "job": job_id}
        params: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        left = limit
        while left is None or left > 0:
            asked = {**params, "after": after, "limit": PAGE if left is None else min(left, PAGE)}
            page = self._get("transitions", asked)
            if page is None:
                return
            for view in page["items"]:
                yield views.transition_of(view)
            if page["next"] is None:
                return
            after = page["next"]
            left = None if left is None else left - len(page["items"])

    def inbox(self) -> list[InboxRow]:
        """Return nothing: a board answers a command at once."""
        return []

    def archived(self, job_id: str | None = None) -> list[ArchivedJob]:
        """Return nothing: a board does not show archived jobs."""
        del job_id
        return []

    def close(self) -> None:
        """Do nothing: there is nothing to close."""

    # -- asking --------------------------------------------------------------------------------------------------------

    def _get(self, path: str, params: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Get a resource; None if it does not exist."""

        async def question(link: Link) -> dict[str, Any] | None:
            try:
                answer: dict[str, Any] = await link.get(path, params)
            except LookupError:
                self._nothing_at(path)
                return None
            return answer

        return told_by(self._board, lambda: self._board.ask(question))

    def _list(self, path: str, limit: int | None = None, **params: Any) -> list[dict[str, Any]]:
        """Get the items of a list, at most `limit`; none if the list does not exist."""
        most = 2**31 if limit is None else limit

        async def question(link: Link) -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = []
            try:
                async for item in link.pages(path, limit=min(most, PAGE), **params):
                    found.append(item)
                    if len(found) >= most:
                        break
            except LookupError:
                self._nothing_at(path)
            return found

        return told_by(self._board, lambda: self._board.ask(question))

    def _nothing_at(self, path: str) -> None:
        """Raise CommandError if a resource of every board is missing: then there is no board."""
        if "/" not in path:
            raise CommandError(f"There is no board at {self._board}: it has no api/{path}. Check the address.")


class BoardCommand(SentCommand):
    """One command that is posted to a board."""

    def __init__(self, board: Board, verb: str, *, request_id: str | None, timeout: float, as_json: bool) -> None:
        super().__init__(board, verb, request_id=request_id, timeout=timeout, as_json=as_json)
        self._board = board

    def who(self, by: str | None) -> str | None:
        """Return the name to keep with the command; None if the token has one."""
        return by if self._board.token is not None else super().who(by)

    def on(self, kind: str, target: str, shown: str, arguments: dict[str, Any], *, detail: str = "") -> None:
        """Send the command. `shown`: the target for people; `detail`: text added to the line with the result."""
        self.check(shown, arguments)
        path = f"{_path(kind, target)}/{VERBS[self.verb].method}"

        async def question(link: Link) -> CommandAnswer:
            try:
                answer = await link.post(path, _said(arguments), self.request_id)
            except (ServerUnreachable, AccessRefused, ServerError, RuntimeClosed, JournalUnwritable):
                raise
            except Exception as error:
                return answer_to(error)
            return CommandAnswer(answer["kind"], answer["id"], answer["state"], answer.get("workstream") or "")

        try:
            answered = self._board.ask(question, self.timeout)
        except (ServerUnreachable, RuntimeClosed, JournalUnwritable) as error:
            if _was_refused(error):
                raise CommandError(_nobody(self._board, error)) from None
            self.later(
                f"{self.verb} {shown}: {error}, within {self.timeout:g} s. It may have taken effect. To find out, "
                f"repeat it with --request-id {self.request_id}: it is not carried out twice."
            )
        except (AccessRefused, ServerError) as error:
            raise CommandError(f"{shown}: {error}.", FAILED) from None
        else:
            self.print_answer(shown, answered, detail)

    def was_given(self, kind: str, target: str, arguments: dict[str, Any]) -> bool:
        """Return False: only the board's answer shows it."""
        del kind, target, arguments
        return False


def _said(arguments: dict[str, Any]) -> dict[str, Any]:
    """Make the body of the request. The name stands beside a machine event's metadata, not in it."""
    metadata = dict(arguments.get("metadata") or {})
    by = metadata.pop("by", arguments.get("by"))
    return {**arguments, "metadata": metadata or None, "by": by}


def _path(kind: str, target: str) -> str:
    if kind == "task":
        job, _, task = target.rpartition("/")
        return f"jobs/{place(job)}/tasks/{place(task)}"
    return f"{kind}s/{place(target)}"


def told_by(board: Board, ask: Callable[[], T]) -> T:
    """Ask a board. Raises CommandError if it does not answer, or refuses."""
    try:
        return ask()
    except (ServerUnreachable, RuntimeClosed, JournalUnwritable) as error:
        raise CommandError(_nobody(board, error)) from None
    except AccessRefused as error:
        raise CommandError(f"{board} refuses: {error}. Give a token with --token-file.") from None
    except ServerError as error:
        raise CommandError(f"{board}: {error}.") from None


def _nobody(board: Board, error: Exception) -> str:
    return f"{error}. Is a runtime served at {board}? `callboard serve` serves one."


def _was_refused(error: Exception) -> bool:
    """Whether the connection was refused, so that the command cannot have arrived."""
    import httpx  # noqa: PLC0415

    return isinstance(error.__cause__, httpx.ConnectError)
