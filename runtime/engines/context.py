"""`TaskContext`: the facts of a body's attempt, and what the body may do.

Rules:
- A context belongs to one attempt. Heartbeats after the end of the attempt are dropped.
- A call that is for another kind of body (an async one on the loop, a plain one in a thread or process) is refused at
  once: a coroutine that a plain body does not await would do nothing, in silence.
- Only the body's own thread may use it: the loop's thread for async functions, its own for plain ones. In other threads
  and event loops, calls that the loop would not notice are refused. `progress` and `emit` may come from any thread.
- structlog is imported when a body first asks for its logger.
"""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Never, ParamSpec, TypeVar, overload
from uuid import UUID

import msgspec

from ...actors.records.step import APPROVAL
from ...actors.spec.schema import plain_problem
from ...actors.times import Duration, seconds
from ...actors.user_code import plain, plain_text, shown
from ..calling import Progress, Shown
from ..text.logs import task_logger
from ..values import checked
from .connection import Connection
from .receiving import NO_DEFAULT, wanted
from .waiting import rule_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import UnionType

    from ...actors.records.base import Decision
    from ...actors.spec.model import Approval, Workstream
    from ..text.secrets import Mask
    from .child_job import ChildJob, ChildJobRequests
    from .steps import BoundStep, Flow, FlowSource, Step
    from .waiting import ApprovalRequests, Waiter

P = ParamSpec("P")
T = TypeVar("T")
D = TypeVar("D")


LONGEST_PROGRESS = 200
"""Characters of the text of a progress."""
MOST_PROGRESS = 10**15
"""The largest number of a progress."""


class Checkpoint(msgspec.Struct, frozen=True):
    """A value saved by `TaskContext.checkpoint`, sent to the runtime in the same way as heartbeats."""

    value: Any


class TaskContext:
    """The facts of one attempt, passed to a body that takes an argument.

    results: the values that its dependencies returned, by their names. details: the last heartbeat's details of the
    previous attempt (None: there were none). saved: the last checkpoint of earlier attempts (None: there was none).
    args: the values from its specification. token: its fencing token, for systems that must refuse a late writer.
    secrets: the values of the secrets that its specification names, by their names; they are masked in everything that
    the body returns.
    """

    __slots__ = (
        "_connection", "_log", "args", "attempt", "details", "job_id", "results", "saved", "secrets", "task", "token",
        "workstream_id",
    )  # fmt: skip

    def __init__(
        self,
        *,
        task: str,
        token: int,
        attempt: int = 1,
        job_id: str = "",
        workstream_id: str = "",
        results: dict[str, Any] | None = None,
        details: Any = None,
        saved: Any = None,
        args: dict[str, Any] | None = None,
        secrets: dict[str, str] | None = None,
        mask: Mask | None = None,
        child_jobs: ChildJobRequests | None = None,
        approvals: ApprovalRequests | None = None,
        flows: FlowSource | None = None,
    ) -> None:
        self.task = task
        self.token = token
        self.attempt = attempt
        self.job_id = job_id
        self.workstream_id = workstream_id
        self.results: dict[str, Any] = {} if results is None else results
        self.details = details
        self.saved = saved
        self.args: dict[str, Any] = {} if args is None else args
        self.secrets: dict[str, str] = {} if secrets is None else secrets
        self._connection = Connection(task, mask, child_jobs, approvals, flows)
        self._log: Any = None

    def heartbeat(self, details: Any = None) -> None:
        """Report that the body is alive, and keep `details` (any JSON-able value) for the next attempt.

        Raises TaskCancelled in a plain function whose task was cancelled: let it through, or clean up and
        return. (Async functions are cancelled by their event loop.) Raises NotSerialisable for other
        details, RuntimeError in another thread than the body's. A thread that an async body has started uses
        `anyio.from_thread.run_sync(task.heartbeat, details)`, or `loop.call_soon_threadsafe`.
        """
        connection = self._connection
        connection.check_here()
        connection.tell(None if details is None else checked(details, "the heartbeat's details"))

    def checkpoint(self, value: Any) -> None:
        """Save the body's progress (any JSON-able value but None): the next attempt, or run, gets it as `saved`.

        It is stored as soon as the runtime receives it, also while the body is being cancelled, and stays if the task
        is cancelled, fails or is interrupted. Nothing is stored if the task's specification has `checkpoint = false`.
        Counts as a heartbeat, and raises the same errors.
        """
        connection = self._connection
        connection.check_here()
        connection.tell(Checkpoint(checked(value, "the checkpoint")))

    def progress(self, done: float, of: float | None = None, text: str = "") -> None:
        """Show how far the body is: `done` of `of` (None: the total is not known), and in `text` what the body does.

        It is shown to people while the attempt runs (events, the board, `callboard status`), and is not durable: a
        restart forgets it. Calls may be as frequent as the body likes: few of them are passed on, and always the last.
        Any thread of the body may call it. It counts as a heartbeat. At most `LONGEST_PROGRESS` characters of the text
        are shown.

        Raises ValueError for a number that is negative or not finite, TypeError for a value of another type,
        TaskCancelled in a plain function whose task was cancelled.
        """
        given = Progress(_number(done, "done"), None if of is None else _number(of, "of"), _shown_text(text, "text"))
        self._connection.show(Shown(given))

    def emit(self, chunk: str) -> None:
        """Stream text, such as the tokens of a model, to all listeners: `JobHandle.task(name).stream()`.

        The text is not durable: the last 1,048,576 characters are kept while the attempt runs, for listeners that come
        later. A slow listener does not delay the body. Any thread of the body may call it. It counts as a heartbeat.

        Raises TypeError for a value that is no text, TaskCancelled in a plain function whose task was cancelled.
        """
        self._connection.show(Shown(text=_valid(plain_text(chunk, "what a body emits"))))

    def submit(self, workstream: Workstream, *, name: str) -> Coroutine[Any, Any, ChildJob]:
        """Submit a child job of this task's job, identified by the task and `name`; returns when it is durable.

        A later attempt, or run, of this task that submits it again gets the same job. Its depth is one more than this
        job's (5 is the deepest), and it is cancelled if this task ends other than completed. It may use its parent's
        slots first.

        Raises SpecificationError, JobExists for another workstream under the same name, ValueError for an invalid name,
        or if the name or the workstream contains the value of a secret, AttemptOver if this attempt has been given up,
        RuntimeError where no child can be submitted (in a hook), and in a plain function.
        """
        return _named(self._connection.known_child_jobs(blocking=False).submit(self, workstream, name), "submit", name)

    def submit_blocking(self, workstream: Workstream, *, name: str) -> ChildJob:
        """`submit` for a plain function, in a thread or in a process. Raises TaskCancelled if its task is cancelled
        meanwhile. In a process, the workstream's functions must have import paths.
        """
        return self._connection.known_child_jobs(blocking=True).submit_blocking(self, workstream, name)

    @overload
    def step(
        self, func: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, T]: ...
    @overload
    def step(self, func: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]: ...
    def step(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        """Call a function as a durable step: once it has completed, it never runs again in this run of the task.

        A later attempt of the task gets its result from the journal, at once. func: any function, or one that `step`
        made (with its retries and its time limit); a plain function runs in a thread. The result is what JSON holds of
        the returned value. When the step fails for good, its exception is raised, or StepFailed if the exception cannot
        be made again; a replay raises it again, but a new attempt after a failed one runs the step again.

        Raises FlowChanged if the kept step of that name and number was another function, RuntimeError inside a step,
        in a hook and in a plain function, AttemptOver if this attempt has been given up.
        """
        return self._connection.flow_of(self.token, blocking=False).call(_step_of(func), args, kwargs)

    @overload
    def step_blocking(self, func: Callable[P, Coroutine[Any, Any, T]], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    @overload
    def step_blocking(self, func: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T: ...
    def step_blocking(self, func: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`step` for a plain function, in a thread or in a process: `func` runs in the body's own thread, unless it
        is async or has retries or a time limit. A body that uses several threads calls its steps in one of them. Also
        raises TaskCancelled.
        """
        return self._connection.flow_of(self.token, blocking=True).call_blocking(_step_of(func), args, kwargs)

    def gather(self, *bound: BoundStep[T], max_parallel: int | None = None) -> Coroutine[Any, Any, list[T]]:
        """Run steps in parallel, `max_parallel` at a time (None: all). Returns their results in the order of the list.

        bound: `function.bind(arguments)` of steps. All run to their ends; then the first failure in the list is raised.
        """
        return _named(self._connection.flow_of(self.token, blocking=False).gather(bound, max_parallel), "gather")

    def gather_blocking(self, *bound: BoundStep[T], max_parallel: int | None = None) -> list[T]:
        """`gather` for a plain function: the steps run in threads of their own. Also raises TaskCancelled."""
        return self._connection.flow_of(self.token, blocking=True).gather_blocking(bound, max_parallel)

    def sleep(self, delay: Duration) -> Coroutine[Any, Any, None]:
        """Wait durably, without occupying a slot: the time runs on while no process runs. delay: seconds, or "2h"."""
        return _named(self._connection.flow_of(self.token, blocking=False).sleep(seconds(delay)), "sleep")

    def sleep_blocking(self, delay: Duration) -> None:
        """`sleep` for a plain function, in a thread or in a process. Also raises TaskCancelled."""
        self._connection.flow_of(self.token, blocking=True).sleep_blocking(seconds(delay))

    @overload
    def receive(self, name: str, *, type: type[T], timeout: Duration | None = None) -> Coroutine[Any, Any, T]: ...
    @overload
    def receive(
        self, name: str, *, type: type[T], timeout: Duration | None = None, default: D
    ) -> Coroutine[Any, Any, T | D]: ...
    @overload
    def receive(
        self, name: str, *, type: UnionType | None = None, timeout: Duration | None = None, default: Any = ...
    ) -> Coroutine[Any, Any, Any]: ...
    def receive(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        default: Any = NO_DEFAULT,
        type: Any = None,  # noqa: A002 - the word that people look for
    ) -> Coroutine[Any, Any, Any]:
        """Wait for a message of that name to this task or its job, and return its value: once, as a durable step.

        Messages that came before wait for this call, and are received in the order in which they were sent. The wait
        occupies no slot, and its deadline stays the same after a restart. default: any object, which is returned if
        none comes within `timeout`; without a default this raises ReceiveTimeout. type: what the value has to be, as
        msgspec decodes it (a Struct, a dataclass, `dict[str, int]`); another value is received and raises
        MessageInvalid.
        """
        flow = self._connection.flow_of(self.token, blocking=False)
        return _named(flow.receive(wanted(name, timeout, default, type)), "receive", name)

    @overload
    def receive_blocking(self, name: str, *, type: type[T], timeout: Duration | None = None) -> T: ...
    @overload
    def receive_blocking(self, name: str, *, type: type[T], timeout: Duration | None = None, default: D) -> T | D: ...
    @overload
    def receive_blocking(
        self, name: str, *, type: UnionType | None = None, timeout: Duration | None = None, default: Any = ...
    ) -> Any: ...
    def receive_blocking(
        self,
        name: str,
        *,
        timeout: Duration | None = None,
        default: Any = NO_DEFAULT,
        type: Any = None,  # noqa: A002 - the word that people look for
    ) -> Any:
        """`receive` for a plain function, in a thread or in a process. Also raises TaskCancelled."""
        flow = self._connection.flow_of(self.token, blocking=True)
        return flow.receive_blocking(wanted(name, timeout, default, type))

    def send(self, job_id: str, name: str, value: Any = None, *, task: str | None = None) -> Coroutine[Any, Any, None]:
        """Send another job a message, as `JobHandle.send` does: once, as a durable step, whenever the process dies.

        It returns when the message is durable. task: the only task of that job that may receive it. Raises LookupError
        if there is no such job or task, InvalidTransitionError if it has ended, TooManyMessages, NotSerialisable,
        ValueError for an invalid name or a value that is too long, FlowChanged if the kept message of that name was
        another one, and what `step` raises.
        """
        flow = self._connection.flow_of(self.token, blocking=False)
        return _named(flow.send(job_id, name, value, task), "send", name)

    def send_blocking(self, job_id: str, name: str, value: Any = None, *, task: str | None = None) -> None:
        """`send` for a plain function, in a thread or in a process. Also raises TaskCancelled."""
        self._connection.flow_of(self.token, blocking=True).send_blocking(job_id, name, value, task)

    def now(self, name: str = "") -> Coroutine[Any, Any, datetime]:
        """The time in UTC, as a step: a replay gets the same.

        name: needed in tasks that the body has started, where the order of calls is not the same in a replay.
        """
        flow = self._connection.flow_of(self.token, blocking=False)
        fact = _named(flow.fact("task.now", flow.now, name), "now", name)
        return _named(_made_of(fact, _time), "now", name)

    def now_blocking(self, name: str = "") -> datetime:
        """`now` for a plain function, in a thread or in a process. Also raises TaskCancelled."""
        flow = self._connection.flow_of(self.token, blocking=True)
        return _time(flow.fact_blocking("task.now", flow.now, name))

    def uuid(self, name: str = "") -> Coroutine[Any, Any, UUID]:
        """A random UUID, as a step: for a request that must be made once, such as a payment. name: as for `now`."""
        flow = self._connection.flow_of(self.token, blocking=False)
        fact = _named(flow.fact("task.uuid", lambda: _uuid(flow), name), "uuid", name)
        return _named(_made_of(fact, UUID), "uuid", name)

    def uuid_blocking(self, name: str = "") -> UUID:
        """`uuid` for a plain function, in a thread or in a process. Also raises TaskCancelled."""
        flow = self._connection.flow_of(self.token, blocking=True)
        return UUID(flow.fact_blocking("task.uuid", lambda: _uuid(flow), name))

    def random(self, name: str = "") -> Coroutine[Any, Any, float]:
        """A random number from 0.0 up to 1.0, as a step. name: as for `now`."""
        flow = self._connection.flow_of(self.token, blocking=False)
        return _named(flow.fact("task.random", flow.random.random, name), "random", name)

    def random_blocking(self, name: str = "") -> float:
        """`random` for a plain function, in a thread or in a process. Also raises TaskCancelled."""
        flow = self._connection.flow_of(self.token, blocking=True)
        return flow.fact_blocking("task.random", flow.random.random, name)

    def publish(self, name: str, value: Any) -> Coroutine[Any, Any, None]:
        """Publish a value (any JSON-able one) under a name: durable, and read from outside by `JobHandle.published`.

        It returns when the value is durable. The last value of a name counts. It is a step: a replay does not publish
        again what was published before, and a later attempt, or run, begins with the values that are published.

        Raises NotSerialisable for a value that cannot be kept, ValueError for an invalid name, and what `step` raises.
        """
        flow = self._connection.flow_of(self.token, blocking=False)
        return _named(flow.publish(name, value), "publish", name)

    def publish_blocking(self, name: str, value: Any) -> None:
        """`publish` for a plain function, in a thread or in a process. Also raises TaskCancelled."""
        self._connection.flow_of(self.token, blocking=True).publish_blocking(name, value)

    def version(self, name: str, latest: int) -> Coroutine[Any, Any, int]:
        """The version of a part of the body with which this flow began: 1 if the flow had kept steps before the run of
        the body that first called this, else `latest`. So changed code can continue running flows: each takes the path
        it began with. Call this before the first step: if the process dies between the first step and this call, the
        version is 1. Raises ValueError for a number below 1 and for an invalid name, TypeError for a value of another
        type.
        """
        flow = self._connection.flow_of(self.token, blocking=False)
        return _named(flow.version(name, _version(name, latest)), "version", name)

    def version_blocking(self, name: str, latest: int) -> int:
        """`version` for a plain function, in a thread or in a process. Also raises TaskCancelled."""
        flow = self._connection.flow_of(self.token, blocking=True)
        return flow.version_blocking(name, _version(name, latest))

    def again(self, /, *given: Never, **args: Any) -> Never:
        """Begin the flow anew with these arguments and an empty history: `return task.again(page=2)`.

        It takes effect when the body returns it, as one durable step: the kept steps are deleted, the attempts and
        losses are counted from zero, time limits begin anew, the checkpoint is dropped, and children and approvals
        under the same names are new ones. `task.args` are these arguments then, and no others. The result of the task
        is what its last round returns. What it returns is typed so that it fits each body's result: type checkers take
        code after it for unreachable, and a body has nothing to do there but to return it.

        Raises ValueError for arguments that JSON cannot hold, or that contain the value of a secret, TypeError for an
        argument without a name, RuntimeError in a step and in a hook. A body that calls it and returns something else
        fails for good.
        """
        from .steps import inside  # noqa: PLC0415 - most bodies take no steps

        if (label := inside.get()) is not None:
            raise RuntimeError(f"task.again was called inside step {label!r}: the body itself returns it")
        if given:
            raise TypeError(
                f"task.again takes each new argument by its name, not {shown(given[0], 60)}: write "
                "`return task.again(page=2)`, or `return task.again(**arguments)` for a dict of them"
            )
        for name, value in args.items():
            if problem := plain_problem(value):
                raise ValueError(f"argument {name!r} of task.again cannot be kept: {problem}")
        given_anew: Any = self._connection.begin_again(self.token, checked(args, "the arguments of task.again"))
        return given_anew  # type: ignore[misc]

    @property
    def cancelled(self) -> bool:
        """Whether the attempt was told to stop."""
        return self._connection.cancelled

    def approval(
        self, name: str, rule: Approval | None = None, **settings: Any
    ) -> Coroutine[Any, Any, tuple[Decision, ...]]:
        """Wait until people have approved; returns their decisions. Meanwhile the attempt's clock is stopped, and the
        body occupies no slot.

        name: the approval's name in its task: a later attempt that asks under the same name gets the same decision.
        rule: who must approve, or its `settings` (`people=2, expires="24h", ...`); see `Approval`. Raises
        ApprovalRejected, ApprovalExpired, SpecificationError for a rule that cannot be met, ValueError for a name that
        is invalid or contains the value of a secret.
        """
        connection = self._connection
        approvals = connection.known_approvals(thread=False)
        connection.keep_out_secrets(name, "the approval's name")
        name = plain_text(name, "the name of an approval")
        ask = partial(approvals.decision, self.token, name, rule_of(rule, settings), connection)
        asked = _named(connection.awaiting(self.token, f"{APPROVAL}{name}", ask), "approval", name)
        return _named(_decided(asked), "approval", name)

    def wait_for_approval(self, name: str, rule: Approval | None = None, **settings: Any) -> tuple[Decision, ...]:
        """`approval` for plain functions, in a thread or in a process. Also raises TaskCancelled."""
        connection = self._connection
        approvals = connection.known_approvals(thread=True)
        connection.keep_out_secrets(name, "the approval's name")
        return approvals.decision_blocking(self.token, name, rule_of(rule, settings), connection).result()

    @property
    def log(self) -> Any:
        """A structlog logger, bound to workstream_id, task and attempt. (structlog has no single type for it.)

        If structlog is not configured, it writes to standard error: standard output belongs to the program.
        """
        if self._log is None:
            bound = {"workstream_id": self.workstream_id, "task": self.task, "attempt": self.attempt}
            self._log = task_logger(self._connection.mask, bound)
        return self._log


def _named(coroutine: Coroutine[Any, Any, T], method: str, name: str = "") -> Coroutine[Any, Any, T]:
    """The coroutine, named as it was called: Python's warning of one that was never awaited says `task.receive paid`.

    name: what was given to the method as a name.
    """
    named: Any = coroutine
    named.__qualname__ = f"task.{method} {name}" if type(name) is str and name else f"task.{method}"
    return coroutine


async def _made_of(fact: Coroutine[Any, Any, Any], make: Callable[[Any], T]) -> T:
    return make(await fact)


async def _decided(waiting: Coroutine[Any, Any, Waiter]) -> tuple[Decision, ...]:
    return (await waiting).result()


def _time(epoch: float) -> datetime:
    return datetime.fromtimestamp(epoch, UTC)


def _uuid(flow: Flow) -> str:
    return str(UUID(int=flow.random.getrandbits(128), version=4))


def _version(name: object, latest: object) -> int:
    """The checked number of the latest version. Raises TypeError and ValueError for an invalid one."""
    if type(latest) is not int:
        raise TypeError(
            f"task.version({shown(name, 40)}, ...) takes the number of the latest version, a whole one from 1 on, "
            f"not {shown(latest, 60)}"
        )
    if latest < 1:
        raise ValueError(
            f"task.version({shown(name, 40)}, {shown(latest, 40)}): versions are 1 and up; the first code is 1"
        )
    return latest


def _number(said: object, what: str) -> float:
    number = plain(said)
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"the progress's `{what}` is a number, not {shown(said, 60)}")
    if not 0 <= number <= MOST_PROGRESS:  # also refuses NaN
        raise ValueError(f"the progress's `{what}` is between 0 and {MOST_PROGRESS:,}, not {shown(said, 60)}")
    return number


def _shown_text(said: object, what: str) -> str:
    text = _valid(plain_text(said, f"the progress's `{what}`"))
    return text if len(text) <= LONGEST_PROGRESS else text[: LONGEST_PROGRESS - 1] + "…"


def _valid(text: str) -> str:
    """A text without lone surrogates, which no encoding can hold."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _step_of(func: Callable[..., Any]) -> Step[..., Any]:
    from .steps import step_of  # noqa: PLC0415 - most bodies take no steps

    return step_of(func)


def connection_of(context: TaskContext) -> Connection:
    """The connection of a body to the runtime, for engines and the runtime."""
    return context._connection  # pyright: ignore[reportPrivateUsage]
