"""A flow: the durable steps of one attempt's body. It replays the kept ones, and runs and persists the others.

Rules (DESIGN section 10)
- A step is found again by its name and its arguments; equal calls are found in their order. Its number, by
  which people name it, is the place of the call among those of its name.
- A call whose name is kept, but not with its arguments, is refused (FlowChanged): the kept step was another call. But
  it is a new step where the order of calls is not fixed: in a task that the body has started, and beside the kept steps
  of such tasks, since parallel branches come in another order each time.
- If a number before a kept step is missing, it was the number of a parallel call that was interrupted: the next call
  without a kept step gets this number, and runs. So the numbers of a name have a gap only where an interrupted call was
  not made again.
- Arguments that JSON cannot hold are not compared; the other arguments of the call are. If none is left to compare, a
  call is found by its number alone.
- FlowChanged ends the attempt for good, even if the body catches it: a body that catches all errors would compensate
  for steps that have not failed. The body runs no further step, and its result or error is dropped.
- A kept step returns its result at once and without I/O. A kept failure is raised again, but only in the round in which
  it happened: after a failed attempt, and in a later run, a failed step runs again.
- A body goes on once its step is durable. It gets the value that the journal holds, as after a restart.
- A step's start is not journaled: if the process dies meanwhile, the step runs again. The start of a step that runs on
  a worker of its own is journaled, so that people see the worker; such a step runs again, too. The end of each of its
  tries is persisted, and its tool released, before its body waits for its own slot again.
- Only Exceptions fail a step. Cancellations and exits of the body pass through, and nothing is kept.
- Each try of a step with a tool holds a unit of the tool, and reports its end. The wait for a unit lends the slot.
- What a body gives up (by a time limit, or by cancelling a scope) is kept as given up: a decision like the choice
  between two messages. A replay, in the round in which the body gave it up, does not ask for it again: the limit that
  ended it is ended at once, and another part of the body that cancelled it does so again. A function that runs is
  given up with its step; a step that is being persisted is not.
- The limit that counts is the outermost one that is over when the decision is durable: it ends the call for the body.
- A replay keeps the order of branches and of given-up calls (`replay_order.py`). A limit that was over ends also if
  another cancels first. A body that has no such limit any more has changed (FlowChanged).
- A wait between two tries above `DURABLE_WAIT` is journaled with its due time, and lends the slot.
- The functions of other steps run in the process of the body. The operations of the runtime that they need are in
  `flow_port.py`.
- A send is journaled before the message is sent, so that it has a key. This key is the message's request_id in each
  replay: so a message that was sent before its step was kept is not sent again.
- The steps of a plain function are called in one thread: with several threads their order would be random, and a replay
  would give one call the result of another.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import anyio
import msgspec

from ...actors.messages.errors import (
    FlowAsleep,
    FlowChanged,
    MessageInvalid,
    Permanent,
    ReceiveTimeout,
    RetryAfter,
)
from ...actors.messages.inputs import CallEnded
from ...actors.records.step import PUBLISH, RECEIVE, SEND, VERSION, StepRecord
from ...actors.spec.backoff import delay
from ...actors.spec.limits import attempts
from ...actors.spec.model import OF_PROCESSES
from ...actors.user_code import is_a
from ..dispatch.body_context import being_cancelled
from ..dispatch.despite_cancel import despite_cancel, is_cancellation
from ..dispatch.given_up import OTHER
from ..functions.import_paths import NoPath, same_names, spoken
from ..values import LARGEST, NotSerialisable, checked
from . import step_errors
from .call_arguments import digest, encoded_call, known_arguments, spoken_call
from .failures import describe
from .flow_port import Receiving
from .kept_steps import KeptSteps
from .receiving import Outgoing, addressed
from .replay_order import TURNS, ReplayOrder
from .steps import (
    BoundStep,
    MessageRequest,
    Step,
    StepRun,
    StepRunEnd,
    ToolRequest,
    bound_of,
    checked_part,
    inside,
    inside_another,
)

if TYPE_CHECKING:
    from random import Random

    from ..text.secrets import Mask
    from .connection import Connection
    from .flow_port import FlowPort
    from .receiving import Wanted

T = TypeVar("T")
DURABLE_WAIT = 30.0
"""Seconds: a longer wait before the next try of a step is journaled."""
MOST_STEPS = 100_000
"""Steps in the history of one flow."""
LONGEST_CALL = 2048
"""Bytes of the arguments of a step that are kept for people, as JSON. Of longer ones only the digest is kept."""
SLEEP = "task.sleep"
"""The name of the steps that `task.sleep` takes."""


class Flow:
    """The steps of one attempt.

    round: the number of failed and deferred attempts before this one. task: the key of the task. mask: of its secrets.
    connection: of the body, if it has a context.
    """

    def __init__(
        self,
        flows: FlowPort,
        token: int,
        kept: Iterable[StepRecord],
        *,
        task: int,
        round: int,  # noqa: A002 - the field's name
        mask: Mask | None,
        connection: Connection | None,
    ) -> None:
        self.flows = flows
        self.token = token
        self.connection = connection
        self._mask = mask
        self._task = task
        self._round = round
        self._kept = KeptSteps(kept)
        self.began_empty = not self._kept
        self._count = len(self._kept)
        self._versions: dict[str, int] = {}
        self._order = ReplayOrder(self._kept, partial(self._kept.first_decided, task, round), flows.after)
        self._waits: dict[tuple[str, int], int] = {}  # keys of rows of given-up waits that are no steps
        self._unsure: dict[tuple[str, str], int] = {}  # keys of sends that were given up, by name and call
        self._asked: set[tuple[str, int]] = set()  # steps of receives for which no message was there
        self._uses = 0  # of tools, by tries of steps
        self._runs = 0  # on workers, by tries of steps
        self.running = 0  # functions of steps that run now
        self.works_beside: Callable[[int], object] | None = None  # called with each change of it, once the body waits
        self.asleep = False  # its body is being dropped: nothing is run and persisted any more
        self.rested_until = 0.0  # UTC epoch seconds: waits up to here are over, though the wall clock was set back
        self.stops = False  # its attempt is to end: the body is cancelled where it waits next
        self.changed: FlowChanged | None = None  # the first call that the kept steps contradict
        self._thread: int | None = None  # of a plain function that has called a step

    # -- calling -------------------------------------------------------------------------------------------------------

    def call(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """Call a step from an async body. Raises RuntimeError inside a step."""
        running = self._run(step, self._place(step.name, step.path, *step.arguments(args, kwargs)), args, kwargs)
        named: Any = running
        named.__qualname__ = f"step {step.name}"  # Python's warning of a coroutine that was never awaited says it
        return running

    def call_dated(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, tuple[Any, float]]:
        """`call`, and when the step ended."""
        return self._dated(step, self._place(step.name, step.path, *step.arguments(args, kwargs)), args, kwargs)

    def call_blocking(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a step from a plain function, in its thread. Raises RuntimeError inside a step, on the loop, and in
        another thread than earlier steps of a plain body.
        """
        if self.flows.on_loop:
            raise RuntimeError(
                f"step {step.name!r} is a plain function, which would block the event loop: write "
                f"`await task.step({step.name}, ...)` in an async body"
            )
        self._check_thread(step.name)
        row = self._place(step.name, step.path, *step.arguments(args, kwargs))
        if isinstance(row, FlowChanged):
            raise row
        if row.ended_at is not None:
            return _result_of(row)
        plain = step.retry.max_attempts == 1 and step.tool is None and step.runs_on is None
        if step.on_loop or row.key or not plain:
            return _result_of(self.flows.blocking(lambda: self._run_new(step, row, args, kwargs), self.connection))
        if self.flows.lacks_slot(self.token):
            self.flows.blocking(lambda: self.flows.gate(self.token), self.connection)
        new = msgspec.structs.replace(row, began_at=self.flows.now(), tries=1)
        try:
            ended = self._success(new, _inside(new.label, partial(step.func, *args, **kwargs)))
        except Exception as error:
            failed = self._failure(new, error)
            self.flows.keep_blocking(self.token, failed, self.connection)
            raise step_errors.again(failed) from error
        return _result_of(self.flows.keep_blocking(self.token, ended, self.connection))

    async def gather(self, bound: Sequence[BoundStep[Any]], most: int | None) -> list[Any]:
        """Run several steps, `most` at a time. All run to their ends; then the first failure in the list is raised."""
        items = [bound_of(item) for item in bound]
        if most is not None and (type(most) is not int or most < 1):
            raise ValueError(f"max_parallel is a number of steps, 1 or more, not {most!r:.40}")
        calls: list[Coroutine[Any, Any, Any]] = []
        results: list[Any] = [None] * len(items)
        failures: dict[int, Exception] = {}
        ended: set[int] = set()
        places = anyio.Semaphore(len(items) or 1 if most is None else most)

        async def run(index: int) -> None:
            async with places:
                try:
                    results[index] = await calls[index]
                except Exception as error:
                    failures[index] = error
            ended.add(index)

        try:
            calls += (self.call(item.step, item.args_given, item.keywords_given) for item in items)
            async with anyio.create_task_group() as group:
                for index in range(len(calls)):
                    group.start_soon(run, index)
        except BaseException as error:
            if len(ended) < len(items) or not is_cancellation(error) or not being_cancelled():
                raise  # else all have ended and are kept, though a limit is over: as of a single step
        finally:
            for call in calls:
                call.close()
        if failures:
            raise failures[min(failures)]
        return results

    def gather_blocking(self, bound: Sequence[BoundStep[Any]], most: int | None) -> list[Any]:
        """`gather` for a plain function: the functions of the steps run in other threads than its own."""
        self._check_thread("task.gather")
        return self.flows.blocking(lambda: self.gather(bound, most), self.connection)

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Wait durably: the time runs on while no process runs."""
        return self._sleep(self._own(SLEEP, seconds), seconds)

    def sleep_blocking(self, seconds: float) -> None:
        """`sleep` for a plain function."""
        self._check_thread(SLEEP)
        row = self._own(SLEEP, seconds)
        self.flows.blocking(lambda: self._sleep(row, seconds), self.connection)

    def receive(self, wanted: Wanted) -> Coroutine[Any, Any, Any]:
        """Receive a message: wait for one, durably."""
        return self._receive(self._own(f"{RECEIVE}{wanted.name}"), wanted)

    def receive_blocking(self, wanted: Wanted) -> Any:
        """`receive` for a plain function."""
        name = f"{RECEIVE}{wanted.name}"
        self._check_thread(name)
        row = self._own(name)
        return self.flows.blocking(lambda: self._receive(row, wanted), self.connection)

    def fall_asleep(self) -> None:
        """Refuse all further steps, child jobs and approvals of this body: it is being dropped."""
        self.asleep = True
        if self.connection is not None:
            self.connection.asleep = True

    @property
    def random(self) -> Random:
        """The runtime's source of randomness."""
        return self.flows.random

    @property
    def on_loop(self) -> bool:
        """Whether the present thread is the one of the event loop."""
        return self.flows.on_loop

    def now(self) -> float:
        """UTC epoch seconds."""
        return self.flows.now()

    def unasked(self) -> list[str]:
        """The labels of kept steps that the body did not ask for."""
        return [row.label for row in self._kept if row.ended_at is not None or not _is_receive(row)]

    # -- replaying -----------------------------------------------------------------------------------------------------

    def _check_thread(self, name: str) -> None:
        """Refuse a second thread to a plain function: an async one may call plain functions in any of its threads."""
        self._refuse_inside(name)  # the function of a step may run in another thread
        if self.connection is None or not self.connection.raises:
            return
        here = threading.get_ident()
        if self._thread is None:
            self._thread = here
        elif self._thread != here:
            raise RuntimeError(
                f"step {name!r} was called in another thread than the steps before it: the order of calls in several "
                "threads is not the same when the body is replayed. Call all steps in one thread, and run steps in "
                "parallel by `task.gather_blocking(function.bind(...), ...)`"
            )

    def _refuse_inside(self, name: str) -> None:
        """Refuse a step inside another one, or of a body that is being dropped."""
        if self.asleep:
            raise FlowAsleep(f"this flow is put to sleep: step {name!r} runs when its body runs again")
        if self.changed is not None:
            raise FlowChanged(str(self.changed))
        if (outer := inside.get()) is not None:
            raise RuntimeError(inside_another(name, outer))

    def _place(self, name: str, path: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> StepRecord | FlowChanged:
        """The row of a call: a kept one if that counts, else a new one; the error if the kept ones are other calls."""
        self._refuse_inside(name)
        data = encoded_call(args, kwargs)
        call = digest(known_arguments(args, kwargs) if data is None else data)
        found = self._kept_of(name, call)
        ordered = found is None and self._in_order
        if found is None and call and data is None and not ordered:
            found = self._kept_of(name, "")  # of an older version, which left out all arguments of such a call
        if found is None and ordered and (known := self._kept.next_in_order(name)) is not None:
            if call and known.call:
                return self._has_changed(
                    f"step {known.label!r} of this flow was called with other arguments than now (kept: "
                    f"{spoken_call(known.call, known.raw_given)}, asked for: "
                    f"{spoken_call(call, self._shown_call(data))}): a body has to call "
                    "its steps as it did before. Make what differs a step (task.now, task.uuid), or give a new call a "
                    "name of its own (`step(function, name=...)`), or ask `task.version(...)` before it"
                )
            self._kept.remove(known)
            found = known
        if found is None:
            return self._new(name, path, call, self._shown_call(data) if args or kwargs else None, branch=not ordered)
        if ":" in found.function and ":" in path and not same_names(found.function, path):
            return self._has_changed(
                f"step {found.label!r} of this flow was {spoken(found.function)}, and its body now calls "
                f"{spoken(path)} under that name: give the new function another name (`@step(name=...)`), or decide by "
                "task.version(...)"
            )
        return self._of_earlier(found) if self._is_earlier(found) else found

    def _of_earlier(self, row: StepRecord) -> StepRecord:
        """The row of a step that was kept in an earlier round: one that was given up then, or has failed, runs again
        under its key.
        """
        if (row.failed and row.ended_at is not None) or (row.given_up is not None and row.ended_at is None):
            row = msgspec.structs.replace(row, began_at=0.0, ended_at=None, due_at=0.0, tries=0)  # as a new one
        return row if row.given_up is None else msgspec.structs.replace(row, given_up=None, cancelled_at=None)

    def _kept_of(self, name: str, call: str) -> StepRecord | None:
        """Take the first kept step of that name and call. A branch may have been the last to ask for one."""
        found = self._kept.take(name, call)
        self._order.called()
        return found

    def _is_earlier(self, row: StepRecord) -> bool:
        """Whether a step was kept in an earlier round: its failure, or that it was given up, does not count."""
        return (row.task, row.round) != (self._task, self._round)

    def _has_changed(self, text: str) -> FlowChanged:
        """The error of a call that the kept steps contradict: from now on the body can request nothing."""
        self.changed = self.changed or FlowChanged(text)
        if self.connection is not None:
            self.connection.changed = str(self.changed)
        return self.changed

    def _own(self, name: str, argument: object = None) -> StepRecord:
        """The row of a step of the library: the kept one with its argument, or a new one."""
        self._refuse_inside(name)
        call = "" if argument is None else digest(encoded_call((argument,), {}))
        found = self._kept_of(name, call)
        if found is None:
            return self._new(name, name, call, None, branch=not self._in_order)
        if found.given_up is None or not self._is_earlier(found):
            return found
        return _anew(found)

    def _shown_call(self, data: bytes | None) -> msgspec.Raw | None:
        """The arguments as they are kept for people; None if there is no JSON of them, or too much."""
        if data is None or len(data) > LONGEST_CALL:
            return None
        if self._mask is not None:
            data = msgspec.json.encode(self._mask.value(msgspec.json.decode(data)))
        return msgspec.Raw(data)

    def _new(self, name: str, path: str, call: str, given: msgspec.Raw | None, *, branch: bool) -> StepRecord:
        if self._count >= MOST_STEPS:
            raise Permanent(
                f"this flow has taken {MOST_STEPS:,} steps, the most that one may take: submit the rest as a child job"
            )
        self._count += 1
        return StepRecord(
            key=0, flow=0, task=0, task_id="", name=name, number=self._kept.next_number(name), function=path, call=call,
            raw_given=given, branch=branch, began_at=0.0, tries=0,
        )  # fmt: skip

    @property
    def _in_order(self) -> bool:
        """Whether the body itself calls here, so that the calls come in the same order in each replay."""
        plain = self.connection is None or self.connection.raises
        return self.flows.in_body and (plain or self.flows.on_loop)

    # -- running -------------------------------------------------------------------------------------------------------

    async def _run(
        self, step: Step[..., Any], row: StepRecord | FlowChanged, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        return _result_of(await self._run_row(step, row, args, kwargs))

    async def _dated(
        self, step: Step[..., Any], row: StepRecord | FlowChanged, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, float]:
        row = await self._run_row(step, row, args, kwargs)
        return _result_of(row), row.ended_at or 0.0

    async def _run_row(
        self, step: Step[..., Any], row: StepRecord | FlowChanged, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StepRecord:
        """The row of a step that has ended: the kept one, or that of a run."""
        if isinstance(row, FlowChanged):
            raise row
        if row.given_up is not None:
            await self._give_up_again(row)
        if row.ended_at is None:
            return await self._run_new(step, row, args, kwargs)
        await self._order.let_branches_catch_up(row.ended_at)
        return row

    async def _run_new(
        self, step: Step[..., Any], row: StepRecord, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> StepRecord:
        """Run a step that has not ended; returns its row. row: it may wait for another try. Raises the step's error."""
        await self._gate(row)
        now = row if row.began_at else msgspec.structs.replace(row, began_at=self.flows.now())
        while True:
            if now.due_at:
                now = await self._pause(now)
            use = 0
            if step.tool is not None:
                use, now = await self._use_tool(step.tool, now)
            if step.runs_on is None:
                now, failure = await self._tried(step, now, use, (args, kwargs))
            else:
                now, failure = await self._run_on_worker(step, now, use, args, kwargs)
            if now.ended_at is None:
                continue
            if failure is None:
                return now
            try:
                raise step_errors.again(now) from failure
            finally:
                del failure  # it holds this frame

    async def _tried(
        self,
        step: Step[..., Any],
        row: StepRecord,
        use: int,
        call: tuple[tuple[Any, ...], dict[str, Any]],
        end: StepRunEnd | None = None,
    ) -> tuple[StepRecord, Exception | None]:
        """Call the function of a step once, or take its end on a worker, and persist the result.

        Returns its row, which waits if there is another try, and the error.
        """
        now = msgspec.structs.replace(
            row if end is None else end.step, tries=row.tries + 1, due_at=None, cancelled_at=None, tool=step.tool,
            tool_use=None, engine=None if end is None else end.step.engine, capabilities=step.capabilities,
            worker_use=None, unroutable=None,
        )  # fmt: skip
        late = None if step.timeout is None else _late(now, step.timeout)
        try:
            value = await self._try(step, now.label, late, *call) if end is None else _came_of(end, late)
            ended = self._success(now, value)
        except Exception as error:
            if use:
                self._leave_tool(use, "failed", error, timed_out=error is late)
            failed = self._failure(now, error)
            wait = self._wait(step, failed, error)
            if wait is None:
                return await self._keep(failed), error
            now = msgspec.structs.replace(failed, ended_at=None, due_at=self.flows.now() + wait)
            if wait > DURABLE_WAIT or end is not None:  # the kept row of a step on a worker says that it runs
                now = await self._keep(now)
            return now, error
        except BaseException as error:
            told = bool(row.due_at) or row.tool_use is not None
            await self._gave_up(
                msgspec.structs.replace(now, tries=row.tries), error, told=told
            )  # this try does not count
            if use:
                self._leave_tool(use, "cancelled")
            raise
        if use:
            self._leave_tool(use, "ok")
        return await self._keep(ended), None

    async def _use_tool(self, tool: str, row: StepRecord) -> tuple[int, StepRecord]:
        """Wait for a unit of a tool. Returns the number of its use, and the row, which may have got a key."""
        self._uses += 1
        use = self._uses
        row = msgspec.structs.replace(row, due_at=None, cancelled_at=None, tool=tool, tool_use=None)
        try:
            return use, await self.flows.use_tool(self.token, ToolRequest(use, tool, row))
        except BaseException as error:
            way = await self._way(error)
            if way is None:
                self._leave_tool(use, "gone")
                raise
            with suppress(Exception):  # it has used the unit of its attempt, perhaps
                row = await self.flows.give_up_tool(self.token, use, CallEnded(self.token, "gone"), way)
            await self._decided(row, await self._way(error))
            raise

    def _leave_tool(
        self, use: int, status: str, error: BaseException | None = None, *, timed_out: bool = False
    ) -> None:
        """Give back a unit of a tool. error: of the function; timed_out: the error is that of a try's time limit."""
        ended = CallEnded(self.token, status)
        if error is not None:
            info = error.info if isinstance(error, StepRaised) else describe(error, self._mask)
            ended = CallEnded(
                self.token, status, error_type="timed_out" if timed_out else info.type, permanent=info.permanent,
                retry_after=info.retry_after, category=info.category, kinds=info.kinds, leaves=info.leaves,
            )  # fmt: skip
        self.flows.leave_tool(self.token, use, ended)

    async def _try(
        self,
        step: Step[..., Any],
        label: str,
        late: TimeoutError | None,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call the function of a step once, in a thread if it is a plain one. late: raised at the step's time limit."""
        if late is None and step.on_loop:  # most steps: without the cost of a scope
            self._runs_now(+1)
            try:
                return await _awaited_inside(label, partial(step.func, *args, **kwargs))
            finally:
                self._runs_now(-1)
        with anyio.CancelScope() as scope:
            timer = None if step.timeout is None else self.flows.after(step.timeout, scope.cancel)
            self._runs_now(+1)
            try:
                if step.on_loop:
                    return await _awaited_inside(label, partial(step.func, *args, **kwargs))
                with anyio.CancelScope(shield=True):  # a thread cannot be stopped: nothing runs beside it
                    func = partial(step.func, *args, **kwargs)
                    return await self.flows.threads.run(partial(_inside, label, func), abandon=True)
            finally:
                self._runs_now(-1)
                if timer is not None:
                    timer()
        assert late is not None  # noqa: S101 - only a time limit cancels the scope
        raise late

    def _runs_now(self, change: int) -> None:
        """Note that a function of a step begins (+1), or has ended (-1)."""
        self.running += change
        if self.works_beside is not None:
            self.works_beside(self.token)

    async def _run_on_worker(
        self, step: Step[..., Any], row: StepRecord, use: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[StepRecord, Exception | None]:
        """Have a worker call the function of a step once. use: of its tool, which it leaves if it does not run.
        Returns what `_tried` does.

        Raises NoPath and NotSerialisable for a step that is to run in another process, and cannot.
        """
        self._runs += 1
        settled: list[StepRecord] = []
        try:
            return await self._sent_to_worker(step, row, use, (args, kwargs), settled.append)
        except BaseException as error:
            if settled:  # the body has given up the wait for its slot
                await self._gave_up(settled[0], error, told=False)
            elif use:
                self._leave_tool(use, "cancelled")
            if not self.flows.in_runtime and await self._way(error) is not None:
                with suppress(Exception):  # as in `_decided`
                    await self.flows.settle(self.token)  # what the runtime has persisted of the run
            raise

    async def _sent_to_worker(
        self,
        step: Step[..., Any],
        row: StepRecord,
        use: int,
        call: tuple[tuple[Any, ...], dict[str, Any]],
        settled: Callable[[StepRecord], object],
    ) -> tuple[StepRecord, Exception | None]:
        away = step.runs_on in OF_PROCESSES or not self.flows.in_runtime
        path, arguments = _for_elsewhere(step, row.label, *call, needed=away)
        step_row = msgspec.structs.replace(
            row, due_at=None, cancelled_at=None, tool=step.tool, tool_use=None, engine=step.runs_on,
            capabilities=step.capabilities, worker_id=None, worker_use=None, unroutable=None,
        )  # fmt: skip
        moves = step.moves and path is not None and arguments is not None
        run = StepRun(self._runs, step_row, moves, path, arguments, step.on_loop, step.timeout)

        async def settle(end: StepRunEnd) -> tuple[StepRecord, Exception | None]:
            ended = await self._tried(step, row, use, call, end)
            settled(ended[0])
            return ended

        return await self.flows.run_step(self.token, run, partial(step.func, *call[0], **call[1]), settle)

    def _wait(self, step: Step[..., Any], failed: StepRecord, error: Exception) -> float | None:
        """Seconds before the next try; None if there is none."""
        retry = step.retry
        if failed.tries >= attempts(retry) or is_a(error, Permanent) or is_a(error, NotSerialisable):
            return None
        asked = error.seconds if isinstance(error, RetryAfter) else None
        if isinstance(error, StepRaised):
            if error.info.permanent or error.path == _NOT_SERIALISABLE:
                return None
            asked = error.info.retry_after
        return delay(retry, failed.tries, self.flows.random, asked)

    # -- receiving -----------------------------------------------------------------------------------------------------

    async def _receive(self, row: StepRecord, wanted: Wanted) -> Any:
        if row.failed and row.ended_at is not None and self._is_earlier(row):
            row = msgspec.structs.replace(_anew(row), message=None)
        if row.given_up is not None:
            await self._give_up_again(row)
        if row.ended_at is None:
            await self._gate(row, waits=True)
        while row.ended_at is None:
            row = await self._next(row, wanted)
        await self._order.let_branches_catch_up(row.ended_at)
        return await self._received(row, wanted)

    async def _next(self, row: StepRecord, wanted: Wanted) -> StepRecord:
        """Take a message for a step that waits for one; wait first if there was none before."""
        now, new = self.flows.now(), not row.began_at
        keep = new or row.cancelled_at is not None  # the runtime has ended the wait of an earlier attempt
        row = msgspec.structs.replace(row, cancelled_at=None)
        place = row.name, row.number
        if new:
            due = None if wanted.timeout is None else now + wanted.timeout
            row = msgspec.structs.replace(row, began_at=now, due_at=due)
        elif place in self._asked:
            try:
                await self.flows.message(self.token, wanted.name, row.due_at)
            except BaseException as error:
                await self._gave_up(row, error, told=True)
                raise
            now = self.flows.now()
        self._asked.add(place)
        if row.due_at is not None and row.due_at <= max(now, self.rested_until):
            row, keep = self._without(row, wanted, now), True
        receiving = Receiving()
        self.flows.take(self.token, MessageRequest(wanted.name, row, keep), receiving)
        # A message that is there is received, though a limit is over.
        return await despite_cancel(receiving.row, _has_ended)

    def _without(self, row: StepRecord, wanted: Wanted, now: float) -> StepRecord:
        """The row of a receive whose time is over: the receive has failed, unless the body gave a default."""
        ended = msgspec.structs.replace(row, ended_at=now, tries=1)
        return ended if wanted.has_default else self._failure(ended, _too_late(row, wanted))

    async def _received(self, row: StepRecord, wanted: Wanted) -> Any:
        """The value of a receive that has ended."""
        if row.message is None:
            if wanted.has_default:
                return wanted.default
            raise _too_late(row, wanted)
        if row.failed:
            raise step_errors.again(row)
        if wanted.kind is None:
            return row.result
        try:
            return msgspec.json.decode(row.raw_result or b"null", type=wanted.kind)
        except msgspec.ValidationError as error:
            text = f"message {wanted.name!r} is not what this body takes: {error}"
            failed = self._failure(row, MessageInvalid(text))
            await self._keep(failed)
            raise MessageInvalid(text) from error

    # -- sending -------------------------------------------------------------------------------------------------------

    def send(self, job_id: str, name: str, value: object, task: str | None) -> Coroutine[Any, Any, None]:
        """Send a message to a job, or to one of its tasks: once, whenever the process dies."""
        return self._send(*self._to_send(job_id, name, value, task))

    def send_blocking(self, job_id: str, name: str, value: object, task: str | None) -> None:
        """`send` for a plain function."""
        self._check_thread(SEND.strip())
        row, message = self._to_send(job_id, name, value, task)
        self.flows.blocking(lambda: self._send(row, message), self.connection)

    def _to_send(
        self, job_id: object, name: object, value: object, task: object
    ) -> tuple[StepRecord | FlowChanged, Outgoing]:
        """The row of a message, and the message. Raises NotSerialisable, TypeError, and ValueError for a bad name."""
        to, only, called = addressed(job_id, task, name)
        if self._mask is not None and self._mask.finds([to, only, called]):
            raise ValueError("the name or the address of a message holds the value of a secret, and would be journaled")
        data = self._encoded(value, f"the value of message {called!r}")
        row = self._place(SEND + called, SEND + called, (to, only, msgspec.json.decode(data)), {})
        return row, Outgoing(to, only, called, data)

    async def _send(self, row: StepRecord | FlowChanged, message: Outgoing) -> None:
        if isinstance(row, FlowChanged):
            raise row
        sent = self._unsure.pop((row.name, row.call), None)  # by an equal call that the body has given up, perhaps
        if row.given_up is not None:
            self._unsure[row.name, row.call] = row.message or row.key
            await self._give_up_again(row)
        if row.ended_at is not None:
            await self._order.let_branches_catch_up(row.ended_at)
            _result_of(row)
            return
        await self._gate(row)
        if not row.key:
            row = msgspec.structs.replace(row, began_at=self.flows.now(), message=sent)
            row = await self._keep(row)
        row = msgspec.structs.replace(row, began_at=row.began_at or self.flows.now(), cancelled_at=None, tries=1)
        await self._send_kept(row, msgspec.structs.replace(message, request_id=f"{SEND}{row.message or row.key}"))

    async def _send_kept(self, row: StepRecord, message: Outgoing) -> None:
        try:
            await self.flows.send(self.token, message)
        except Exception as error:
            failed = self._failure(row, error)
            await self._keep(failed)
            raise step_errors.again(failed) from error
        except BaseException as error:
            self._unsure[row.name, row.call] = row.message or row.key  # the next equal call sends under this key
            await self._gave_up(row, error, told=True)
            raise
        await self._keep(self._success(row, None))

    # -- keeping -------------------------------------------------------------------------------------------------------

    async def _keep(self, row: StepRecord) -> StepRecord:
        return await self.flows.keep(self.token, row)

    def _success(self, row: StepRecord, value: Any) -> StepRecord:
        """The row of a step that has returned. Raises NotSerialisable for a value that cannot be kept."""
        data = self._encoded(value, f"the result of step {row.label!r}")
        return msgspec.structs.replace(
            row, ended_at=self.flows.now(), due_at=None, raw_result=data, error=None, error_type=None,
            raw_arguments=None, category=None, traceback=None,
        )  # fmt: skip

    def _encoded(self, value: object, what: str) -> msgspec.Raw:
        """A value as it is kept. Raises NotSerialisable for a value that cannot be kept."""
        value = checked(value, what)
        if self._mask is not None:
            value = self._mask.value(value)
        data = msgspec.json.encode(value)
        if len(data) > LARGEST:
            raise NotSerialisable(
                f"{what} has {len(data):,} bytes; at most {LARGEST:,} are allowed. Keep it in a file, and give its path"
            )
        return msgspec.Raw(data)

    def _failure(self, row: StepRecord, error: Exception) -> StepRecord:
        """The row of a step that has failed. `step_errors.again` makes the error that its body gets."""
        if isinstance(error, StepRaised):
            info, arguments, path = error.info, error.arguments, error.path
        else:
            info, arguments = step_errors.recorded(error, self._mask)
            path = step_errors.path_of(error)
        return msgspec.structs.replace(
            row, ended_at=self.flows.now(), due_at=None, error=info.message, error_type=path,
            raw_arguments=arguments, category=info.category, traceback=info.traceback or None,
        )  # fmt: skip

    # -- publishing ----------------------------------------------------------------------------------------------------

    def publish(self, name: str, value: object) -> Coroutine[Any, Any, None]:
        """Persist a value that others can read. One that was published before, in a replay, is not published again."""
        return self._publish(*self._to_publish(name, value))

    def publish_blocking(self, name: str, value: object) -> None:
        """`publish` for a plain function."""
        self._check_thread(PUBLISH.strip())
        row, data = self._to_publish(name, value)
        if row.ended_at is None:
            self.flows.keep_blocking(self.token, self._published(row, data), self.connection)

    def _to_publish(self, name: str, value: object) -> tuple[StepRecord, msgspec.Raw]:
        """The row of a published value, and the value. Raises NotSerialisable, and ValueError for an invalid name."""
        name = self._part(name, "a published value", PUBLISH)
        data = self._encoded(value, f"the published value {name!r}")
        return self._own(PUBLISH + name, [msgspec.json.decode(data)]), data

    def _part(self, name: object, what: str, before: str) -> str:
        """The checked name that a body gives to a step of the library. Raises TypeError and ValueError."""
        name = checked_part(name, what, before)
        if self._mask is not None and self._mask.finds(name):
            raise ValueError(f"the name of {what} holds the value of a secret, and would be journaled")
        return name

    async def _publish(self, row: StepRecord, data: msgspec.Raw) -> None:
        if row.ended_at is None:
            await self._keep(self._published(row, data))

    def _published(self, row: StepRecord, data: msgspec.Raw) -> StepRecord:
        now = self.flows.now()
        return msgspec.structs.replace(row, began_at=now, ended_at=now, tries=1, raw_result=data)

    # -- facts that a body decides by ----------------------------------------------------------------------------------

    def fact(self, name: str, make: Callable[[], T], label: str = "") -> Coroutine[Any, Any, T]:
        """A value that is made once and then kept: the time, an id, a random number. `make` makes plain JSON.

        label: of the value, for a task that the body has started. Raises RuntimeError there without one: values of
        parallel branches would be exchanged by a replay.
        """
        if not label and not self.flows.in_body:
            raise RuntimeError(
                f"{name}() in a task that the body has started needs a name, since parallel branches come in another "
                f'order when the body is replayed: {name}("payment of A")'
            )
        return self._fact(self._own(self._named(name, label)), make)

    def fact_blocking(self, name: str, make: Callable[[], T], label: str = "") -> T:
        """`fact` for a plain function."""
        self._check_thread(name)
        row = self._own(self._named(name, label))
        if row.ended_at is None:
            row = self.flows.keep_blocking(self.token, self._made(row, make), self.connection)
        found: T = row.result
        return found

    def _named(self, name: str, label: str) -> str:
        """The name of a step of the library with the label that a body has given to it, if any."""
        before = f"{name} "
        return name if label == "" else before + self._part(label, f"{name}()", before)

    async def _fact(self, row: StepRecord, make: Callable[[], T]) -> T:
        if row.ended_at is None:
            row = await self._keep(self._made(row, make))
        found: T = row.result
        return found

    def _made(self, row: StepRecord, make: Callable[[], Any]) -> StepRecord:
        now, made = self.flows.now(), msgspec.Raw(msgspec.json.encode(make()))
        return msgspec.structs.replace(row, began_at=now, ended_at=now, tries=1, raw_result=made)

    async def version(self, name: str, latest: int) -> int:
        """The version of a part of the body that this flow began with: `latest`, or 1 if it began before that part."""
        name = self._part(name, "a version", VERSION)
        if name not in self._versions:
            row = self._own(VERSION + name)
            self._versions[name] = await self._fact(row, lambda: latest if self.began_empty else 1)
        return self._versions[name]

    def version_blocking(self, name: str, latest: int) -> int:
        """`version` for a plain function."""
        self._check_thread(VERSION.strip())
        name = self._part(name, "a version", VERSION)
        if name not in self._versions:
            self._versions[name] = self.fact_blocking(VERSION + name, lambda: latest if self.began_empty else 1)
        return self._versions[name]

    async def _sleep(self, row: StepRecord, seconds: float) -> None:
        if row.given_up is not None:
            await self._give_up_again(row)
        if row.ended_at is not None:
            await self._order.let_branches_catch_up(row.ended_at)
            return
        if not row.began_at:
            now = self.flows.now()
            row = await self._keep(msgspec.structs.replace(row, began_at=now, due_at=now + seconds, tries=1))
        row = await self._pause(row)
        self.flows.keep_later(self.token, msgspec.structs.replace(row, ended_at=self.flows.now()))

    async def _pause(self, row: StepRecord) -> StepRecord:
        """Wait until the due time of a step. Returns its row."""
        if row.cancelled_at is not None:
            row = await self._keep(msgspec.structs.replace(row, cancelled_at=None))
        try:
            await self.flows.pause(self.token, row.due_at or 0.0)
        except BaseException as error:
            await self._gave_up(row, error, told=True)
            raise
        return row

    # -- giving up -----------------------------------------------------------------------------------------------------

    async def _gate(self, row: StepRecord, *, waits: bool = False) -> None:
        """Wait until a new step may begin. waits: as for `FlowPort.gate`."""
        try:
            await self.flows.gate(self.token, waits=waits)
        except BaseException as error:
            await self._gave_up(row, error, told=False)
            raise

    async def _way(self, error: BaseException) -> str | None:
        """How the body has given up a call that is being cancelled; None if it has not. error: what ended the call."""
        return await self.flows.limits.gave_up_here() if is_cancellation(error) else None

    async def _gave_up(self, row: StepRecord, error: BaseException, *, told: bool) -> None:
        """Persist that a call was given up, if the body has done that. error: what ended the call.

        told: the kept row says that the step waits. From now on it says that it waits no longer, whatever ended it.
        """
        way = await self._way(error)
        if way is not None or (told and row.key and not isinstance(error, Exception | FlowAsleep)):
            now = self.flows.now()
            cancelled = msgspec.structs.replace(
                row, began_at=row.began_at or now, cancelled_at=now, tool_use=None, worker_use=None
            )
            if way is None:
                self.flows.keep_later(self.token, cancelled)
            else:
                await self._decided(cancelled, way)

    async def _decided(self, row: StepRecord, way: str | None) -> None:
        """Wait until it is durable how the body has given up a call, which it may act upon from now on.

        A limit further out may be over by then: for the body that one has ended the call, and so it is kept instead.
        """
        with suppress(Exception):  # the attempt, or the runtime, has ended: the body does nothing more
            while way is not None and way != row.given_up:
                row = await self._keep(msgspec.structs.replace(row, cancelled_at=self.flows.now(), given_up=way))
                way = await self.flows.limits.gave_up_here()

    async def _give_up_again(self, row: StepRecord) -> NoReturn:
        """Be given up as before. row: of the call. Raises FlowChanged if nothing in the present body can do that."""
        way = row.given_up or OTHER
        if way != OTHER:
            limit = await self.flows.limits.limit_here(way)
            if limit is None:
                raise self._has_changed(
                    f"step {row.label!r} of this flow was given up by its body (a time limit was over, or a scope was "
                    "cancelled), and the body now waits for it without that limit: keep it, or decide by "
                    "task.version(...)"
                )
            try:
                await self._order.until_given_up(row.cancelled_at or 0.0)
            except BaseException as error:  # a scope further in was cancelled, although this limit was over
                if is_cancellation(error):
                    with suppress(RuntimeError):  # a limit of asyncio that is over now
                        limit()
                raise
            limit()
        for _ in range(4 * TURNS):  # mostly it is cancelled here
            await anyio.lowlevel.checkpoint()
        await self.flows.stay(self.token)
        raise AssertionError("a body that stays is cancelled there")

    async def give_up_wait_again(self, name: str, number: int) -> None:
        """Be given up again where the body has given up a wait that is no step: its call of that name and number."""
        row = self._kept.at(name, number)
        self._order.called(step=False)
        if row is None:
            return
        if row.given_up is not None and not self._is_earlier(row):
            await self._give_up_again(row)
        self._waits[name, number] = row.key

    async def gave_up_wait(self, name: str, number: int, way: str) -> None:
        """Persist that the body has given up a wait that is no step. way: as in `StepRecord`."""
        now = self.flows.now()
        key = self._waits.get((name, number), 0)
        row = StepRecord(
            key=key, flow=0, task=0, task_id="", name=name, number=number, function=name, branch=not self._in_order,
            began_at=now, tries=0,
        )  # fmt: skip
        self._count += not key
        await self._decided(row, way)


class StepRaised(Exception):  # noqa: N818 - it says what happened
    """A step has failed on a worker: it stands for the error that was raised there. path: of that error's class.

    arguments: from which that error can be made again, as JSON.
    """

    def __init__(self, end: StepRunEnd) -> None:
        assert end.error is not None  # noqa: S101 - the caller has looked
        super().__init__(end.error.message)
        self.info = end.error
        self.path = end.path
        self.arguments = None if end.arguments is None else msgspec.Raw(msgspec.json.encode(end.arguments))


def _anew(row: StepRecord) -> StepRecord:
    """The row of a receive that waits anew, under its key."""
    return msgspec.structs.replace(
        row, began_at=0.0, ended_at=None, due_at=None, cancelled_at=None, given_up=None, error=None, error_type=None,
        raw_arguments=None, category=None, traceback=None,
    )  # fmt: skip


def _has_ended(row: StepRecord) -> bool:
    return row.ended_at is not None


def _is_receive(row: StepRecord) -> bool:
    return row.name.startswith(RECEIVE)


def _too_late(row: StepRecord, wanted: Wanted) -> ReceiveTimeout:
    waited = "" if wanted.timeout is None else f" within {wanted.timeout:g} s"
    due = None if row.due_at is None else datetime.fromtimestamp(row.due_at, UTC).isoformat(timespec="seconds")
    return ReceiveTimeout(f"no message {wanted.name!r} came{waited}" + (f", until {due}" if due else ""))


def _late(row: StepRecord, limit: float) -> TimeoutError:
    return TimeoutError(f"step {row.label!r} took longer than {limit:g} s")


_NOT_SERIALISABLE = f"{NotSerialisable.__module__}:{NotSerialisable.__qualname__}"


def _came_of(end: StepRunEnd, late: TimeoutError | None) -> Any:
    """The value of a step that has returned on a worker. late: raised if it has reached its time limit.

    Raises StepRaised.
    """
    if end.late and late is not None:
        raise late
    if end.error is not None:
        raise StepRaised(end)
    return end.value


def _for_elsewhere(
    step: Step[..., Any], label: str, args: tuple[Any, ...], kwargs: dict[str, Any], *, needed: bool
) -> tuple[str | None, msgspec.Raw | None]:
    """The data that another process needs to call a step: the import path of its function, and its arguments as JSON.

    needed: the step has to run in another process than its body. Then NoPath and NotSerialisable are raised; else both
    results are None if one of them cannot be made.
    """
    try:
        path = step.import_path()
        return path, msgspec.Raw(msgspec.json.encode(checked([args, kwargs], f"the arguments of step {label!r}")))
    except (NoPath, NotSerialisable):
        if needed:
            raise
        return None, None


def _result_of(row: StepRecord) -> Any:
    """Return the result of a step that has ended, or raise its error, as the body gets it."""
    if row.failed:
        raise step_errors.again(row)
    return row.result


def _inside(label: str, func: Callable[[], T]) -> T:
    """Call the function of a step: no other step can be called in it."""
    token = inside.set(label)
    try:
        return func()
    finally:
        inside.reset(token)


async def _awaited_inside(label: str, func: Callable[[], Awaitable[T]]) -> T:
    token = inside.set(label)
    try:
        return await func()
    finally:
        inside.reset(token)
