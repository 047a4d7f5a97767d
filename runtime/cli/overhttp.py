"""What commands ask a journal and tell a runtime, over the HTTP interface of its board.

Rules
-----
- Keys are this reader's own: a run of a job gets one when it is first told of, and is asked for by it.
- Only what is running answers, so nothing waits in an inbox, and nothing is told of what was archived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from ...actors.spec.model import Task, Workstream
from ..client import views
from ..client.link import Link, place
from ..client.trouble import AccessRefused, ServerError, ServerUnreachable
from ..commands.verbs import VERBS
from ..commands.wire_errors import Answered, answer_to
from ..handles.outcomes import RuntimeClosed
from ..journal.contract import JournalUnwritable
from .acting import Act
from .trouble import FAILED, Trouble

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
    from ...actors.records.task import TaskRecord
    from ...actors.records.transition import Transitioned
    from ..journal.contract import ArchivedJob, InboxRow
    from .boards import Board

T = TypeVar("T")
PAGE = 500


class RemoteReader:
    """What a board shows, as a journal would be asked for it."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._runs: list[WorkstreamRecord] = []  # by their keys here, from 1

    def job(self, job_id: str) -> JobRecord | None:
        """The job of that id, ended or not."""
        view = self._get(f"jobs/{place(job_id)}") if job_id else None
        return None if view is None else views.job_of(view)

    def jobs(self, *, states: Sequence[str] = (), limit: int = 100) -> list[JobRecord]:
        """Jobs, newest first; only those in `states` where given."""
        return [views.job_of(view) for view in self._list("jobs", limit, state=list(states))]

    def children(self, job_id: str) -> list[JobRecord]:
        """The jobs that tasks of that one have submitted, oldest first."""
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
        """Of the specification of the workstream with that key: its tasks, with what they wait for and their tools.

        Raises Trouble for one that is not known by its run: whoever asks for that wants all of it.
        """
        if not workstream:
            raise Trouble("What a job was specified as is not told over HTTP: --plan needs the journal.")
        tasks = [
            Task(view["name"], depends_on=view["depends_on"], after=view["after"], tool=view["tool"])
            for view in self._tasks(workstream)
        ]
        return msgspec.json.encode(Workstream(self._runs[workstream - 1].name, tasks=tasks))

    def tasks(self, workstream: int) -> list[TaskRecord]:
        """The tasks of the workstream with that key, in the order of its specification."""
        return [views.task_of(view) for view in self._tasks(workstream)]

    def _tasks(self, workstream: int) -> list[dict[str, Any]]:
        run = self._runs[workstream - 1]
        return self._list(f"jobs/{place(run.job_id)}/tasks", run=run.run)

    def approvals(self, workstream: int) -> list[ApprovalRecord]:
        """The approvals that bodies of the workstream with that key ask for now, oldest first."""
        job_id = self._runs[workstream - 1].job_id
        return [
            views.approval_of(view)
            for view in self._list(f"jobs/{place(job_id)}/approvals")
            if view["kind"] == "approval"
        ]

    def workers(self) -> list[WorkerRecord]:
        """The last incarnation of every worker: that is what a board shows."""
        return [views.worker_of(view) for view in self._list("workers")]

    def breakers(self) -> list[BreakerRecord]:
        """Every breaker."""
        return [views.breaker_of(view) for view in self._list("breakers")]

    def machine(self, name: str) -> MachineRecord | None:
        """The `MachineActor` of that name, ended or not."""
        view = self._get(f"machines/{place(name)}")
        return None if view is None else views.machine_of(view)

    def machines(self, *, living: bool = False, limit: int | None = None) -> list[MachineRecord]:
        """Every `MachineActor`, newest first; only those that have not ended, where asked for."""
        found = [views.machine_of(view) for view in self._list("machines", limit)]
        return [one for one in found if not living or one.finished_at is None]

    def outbox(self) -> list[OutboxRow]:
        """What is owed, as far as a board tells of it."""
        return [views.outbox_of(view) for view in self._list("owed")]

    def notices(
        self, *, about: str | None = None, since: float = 0.0, first: int = 0, limit: int = 100
    ) -> list[NoticeRecord]:
        """Notices that are kept, those told of last first."""
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
        """Transitions in order, numbered above `after`; of one entity, or of a job and all that is in it."""
        given = {"entity": entity_id, "job": job_id}
        params: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        left = limit
        while left is None or left > 0:
            asked = {**params, "after": after, "limit": PAGE if left is None else min(left, PAGE)}
            page = self._get("transitions", asked)
            if page is None:
                return
            for told in page["items"]:
                yield views.transition_of(told)
            if page["next"] is None:
                return
            after = page["next"]
            left = None if left is None else left - len(page["items"])

    def inbox(self) -> list[InboxRow]:
        """Nothing: a command is answered at once."""
        return []

    def archived(self, job_id: str | None = None) -> list[ArchivedJob]:
        """Nothing: what is not in the journal any more is not shown there."""
        del job_id
        return []

    def close(self) -> None:
        """There is nothing to let go of."""

    # -- asking --------------------------------------------------------------------------------------------------------

    def _get(self, path: str, params: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """What stands there; None where nothing does."""

        async def question(link: Link) -> dict[str, Any] | None:
            try:
                told: dict[str, Any] = await link.get(path, params)
            except LookupError:
                self._nothing_at(path)
                return None
            return told

        return told_by(self._board, lambda: self._board.ask(question))

    def _list(self, path: str, limit: int | None = None, **params: Any) -> list[dict[str, Any]]:
        """The items of a list, `limit` of them at most; none where there is no such list."""
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
        """Raises Trouble for what every board has, though perhaps nothing in it: then there is no board."""
        if "/" not in path:
            raise Trouble(f"There is no board at {self._board}: nothing is at its api/{path}. Check the address.")


class BoardAct(Act):
    """One command, posted to a board."""

    def __init__(self, board: Board, verb: str, *, request_id: str | None, timeout: float, as_json: bool) -> None:
        super().__init__(board, verb, request_id=request_id, timeout=timeout, as_json=as_json)
        self._board = board

    def who(self, by: str | None) -> str | None:
        """Who says it: whom the token is for, where there is one."""
        return by if self._board.token is not None else super().who(by)

    def on(self, kind: str, target: str, shown: str, arguments: dict[str, Any], *, told: str = "") -> None:
        """Do it. `shown` is the target in words, `told` what is added to the line that says what came of it."""
        self.check(shown, arguments)
        path = f"{_path(kind, target)}/{VERBS[self.verb].method}"

        async def question(link: Link) -> Answered:
            try:
                answer = await link.post(path, _said(arguments), self.request_id)
            except (ServerUnreachable, AccessRefused, ServerError, RuntimeClosed, JournalUnwritable):
                raise
            except Exception as error:
                return answer_to(error)
            return Answered(answer["kind"], answer["id"], answer["state"], answer.get("workstream") or "")

        try:
            answered = self._board.ask(question, self.timeout)
        except (ServerUnreachable, RuntimeClosed, JournalUnwritable) as error:
            if _was_refused(error):
                raise Trouble(_nobody(self._board, error)) from None
            self.later(
                f"{self.verb} {shown}: {error}, within {self.timeout:g} s. It may have taken effect: the same command "
                f"with --request-id {self.request_id} is done once, and tells."
            )
        except (AccessRefused, ServerError) as error:
            raise Trouble(f"{shown}: {error}.", FAILED) from None
        else:
            self.tell(shown, answered, told)

    def was_given(self, kind: str, target: str, arguments: dict[str, Any]) -> bool:
        """No: only the answer tells."""
        del kind, target, arguments
        return False


def _said(arguments: dict[str, Any]) -> dict[str, Any]:
    """What is posted. Who says so is said beside the metadata of a machine's event, and stands in them there."""
    metadata = dict(arguments.get("metadata") or {})
    by = metadata.pop("by", arguments.get("by"))
    return {**arguments, "metadata": metadata or None, "by": by}


def _path(kind: str, target: str) -> str:
    if kind == "task":
        job, _, task = target.rpartition("/")
        return f"jobs/{place(job)}/tasks/{place(task)}"
    return f"{kind}s/{place(target)}"


def told_by(board: Board, ask: Callable[[], T]) -> T:
    """What a board answers. Raises Trouble where it does not, or may not."""
    try:
        return ask()
    except (ServerUnreachable, RuntimeClosed, JournalUnwritable) as error:
        raise Trouble(_nobody(board, error)) from None
    except AccessRefused as error:
        raise Trouble(f"{board} refuses: {error}. Give a token by --token-file.") from None
    except ServerError as error:
        raise Trouble(f"{board}: {error}.") from None


def _nobody(board: Board, error: Exception) -> str:
    return f"{error}. Is a runtime served at {board}? `callboard serve` does."


def _was_refused(error: Exception) -> bool:
    """Whether nobody was there to get the command."""
    import httpx  # noqa: PLC0415

    return isinstance(error.__cause__, httpx.ConnectError)
