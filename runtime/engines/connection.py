"""The connection of a body to the runtime: the part of a `TaskContext` for engines and the runtime.

It belongs to one attempt. `connection_of(context)` in `context.py` returns it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ...actors.messages.errors import AttemptOver, FlowAsleep, FlowChanged, Permanent, TaskCancelled
from ..dispatch.despite_cancel import is_cancellation
from ..dispatch.waker import OwnLoop
from .waiting import Waiter

if TYPE_CHECKING:
    from threading import Event

    from ..calling import Shown
    from ..dispatch.loop_bridge import LoopBridge
    from ..text.secrets import Mask
    from .child_job import ChildJobRequests
    from .heartbeats import ShownBuffer
    from .steps import Flow, FlowSource
    from .waiting import ApprovalRequests


T = TypeVar("T")
_making = Lock()


def _nowhere(details: Any) -> None:
    """Drop a heartbeat before the start or after the end of the attempt."""


class Again:
    """What a body returns in order to begin anew (`TaskContext.again`). args: as plain JSON."""

    __slots__ = ("args", "token")

    def __init__(self, token: int, args: dict[str, Any]) -> None:
        self.token = token
        self.args = args

    def __repr__(self) -> str:
        return f"<again with {', '.join(self.args) or 'no arguments'}>"


class Connection:
    """The connection of one attempt's body. mask: of the secrets that it was given."""

    __slots__ = (
        "again", "approvals", "asleep", "awaited", "beat", "cancelled", "cannot_wait", "changed", "child_jobs", "flows",
        "line", "mask", "on_cancel", "own_loop", "raises", "shown", "task", "waiters",
    )  # fmt: skip

    def __init__(
        self,
        task: str,
        mask: Mask | None,
        child_jobs: ChildJobRequests | None,
        approvals: ApprovalRequests | None,
        flows: FlowSource | None = None,
    ) -> None:
        self.task = task
        self.mask = mask
        self.child_jobs = child_jobs
        self.approvals = approvals
        self.flows = flows
        self.cancelled = self.raises = False
        self.asleep = False  # the body is being dropped: it can request nothing
        self.changed: str | None = None  # the text of FlowChanged: then the body can request nothing any more
        self.beat: Callable[[Any], None] = _nowhere
        self.own_loop: OwnLoop | None = None  # the event loop that the body runs on
        self.line: LoopBridge | None = None  # to that loop
        self.shown: ShownBuffer | None = None  # by other threads of a body on a loop
        self.cannot_wait: str | None = None
        self.awaited: Counter[str] | None = None  # waits that are no steps, by their names
        self.waiters: list[Waiter] = []  # the waits of the body in its threads
        self.on_cancel: Callable[[], object] | None = None
        self.again: Again | None = None  # what `task.again` returned last

    # -- for engines ---------------------------------------------------------------------------------------------------

    def attach(
        self,
        beat: Callable[[Any], None],
        *,
        raises: bool,
        cannot_wait: str | None = None,
        line: LoopBridge | None = None,
    ) -> None:
        """Set the receiver of heartbeats, and whether they raise when the task is cancelled. cannot_wait: why the body
        cannot wait for anything, if it cannot. line: to the loop of the body, if it runs on one.
        """
        self.beat = beat
        self.line = line
        self.awaited = None
        self.own_loop = None if raises else OwnLoop()
        self.raises = raises
        self.cannot_wait = cannot_wait

    def detach(self) -> None:
        """The attempt is over: drop further heartbeats."""
        if self.shown is not None:
            self._pass_on_shown(self.shown)  # what other threads have shown before the end
        self.beat = _nowhere
        self.own_loop = None
        if self.waiters or self.on_cancel is not None:
            self._release()

    def cancel(self) -> None:
        """Order the attempt to stop. Called on the loop, or in the reading thread of a worker process."""
        self.cancelled = True
        self._release()

    def _release(self) -> None:
        for waiter in list(self.waiters):
            waiter.over.set()
        if self.on_cancel is not None:
            self.on_cancel()

    # -- for the runtime -----------------------------------------------------------------------------------------------

    def when_cancelled(self, do: Callable[[], object]) -> None:
        """Call `do` when the attempt gets the order to stop (or has got it), and when it is over."""
        self.on_cancel = do
        if self.cancelled:
            do()

    def wait_for(self, waiter: Waiter) -> None:
        """Block the body's thread until the waiter, or the attempt, is over."""
        self.waiters.append(waiter)
        try:
            if not self.cancelled:
                cast("Event", waiter.over).wait()
        finally:
            self.waiters.remove(waiter)

    def keep_out_secrets(self, value: Any, what: str) -> None:
        """Raise ValueError if a value that would be journaled unmasked contains a secret."""
        if self.mask is not None and self.mask.finds(value):
            raise ValueError(
                f"{what} holds the value of a secret, and would be journaled: say the secret's name under `secrets` of "
                "what needs it"
            )

    # -- for the context -----------------------------------------------------------------------------------------------

    def tell(self, details: Any) -> None:
        """Send a heartbeat. Raises TaskCancelled in a plain function whose task was cancelled."""
        self.beat(details)
        if self.cancelled and self.raises:
            raise TaskCancelled(f"the task {self.task!r} was cancelled")

    def show(self, shown: Shown) -> None:
        """Send progress or text, from any thread. Raises TaskCancelled as `tell` does."""
        own_loop, line = self.own_loop, self.line
        if own_loop is None or line is None or own_loop.here:
            self.tell(shown)
            return
        from .heartbeats import ShownBuffer  # noqa: PLC0415 - few async bodies show something from a thread

        with _making:
            buffer = self.shown = self.shown or ShownBuffer()
        if buffer.add(shown):
            line.post(self._pass_on_shown, buffer)

    def _pass_on_shown(self, buffer: ShownBuffer) -> None:
        if (shown := buffer.take()) is not None:
            self.beat(shown)

    def known_approvals(self, *, thread: bool) -> ApprovalRequests:
        """The receiver of approval requests. Raises RuntimeError where the body cannot ask."""
        if self.approvals is None:
            raise RuntimeError("approvals can be asked for by bodies of tasks, and nowhere else")
        self._check_place(thread, "await task.approval(...)", "task.wait_for_approval(...)")
        return self.approvals

    def known_child_jobs(self, *, blocking: bool) -> ChildJobRequests:
        """The submitter of child jobs. Raises RuntimeError where the body cannot submit."""
        if self.child_jobs is None:
            raise RuntimeError(f"{self.task!r} cannot submit jobs here: the body of a task can")
        self._check_place(blocking, "await task.submit(...)", "task.submit_blocking(...)")
        return self.child_jobs

    def flow_of(self, token: int, *, blocking: bool) -> Flow:
        """The flow of the body. Raises RuntimeError where a body cannot take steps."""
        if self.flows is None:
            raise RuntimeError(f"{self.task!r} cannot take steps here: the body of a task can")
        self._check_place(blocking, "await task.step(...)", "task.step_blocking(...)")
        return self.flows.of(token, self.mask, self)

    async def awaiting(self, token: int, name: str, wait: Callable[[], Awaitable[T]]) -> T:
        """Await something that is no step, for an async body. If the body gives it up, a step of that name says so, and
        a replay gives it up again.
        """
        from .steps import inside  # noqa: PLC0415 - most bodies take no steps

        flows = self.flows
        if flows is None or inside.get() is not None:
            return await wait()
        self.awaited = self.awaited or Counter()
        self.awaited[name] += 1
        number = self.awaited[name]
        if (before := flows.waits_of(token, self.mask, self, new=False)) is not None:
            await before.give_up_wait_again(name, number)
        try:
            return await wait()
        except BaseException as error:
            if is_cancellation(error) and (way := await flows.limits.gave_up_here()) is not None:
                with suppress(AttemptOver):
                    waits = flows.waits_of(token, self.mask, self, new=True)
                    if waits is not None:
                        await waits.gave_up_wait(name, number, way)
            raise

    def begin_again(self, token: int, args: dict[str, Any]) -> Again:
        """Note that the body is going to begin anew. Raises RuntimeError where there is no body."""
        if self.flows is None:
            raise RuntimeError(
                f"{self.task!r} cannot begin anew here: the body of a task can, by `return task.again(...)`"
            )
        self.keep_out_secrets(args, "the arguments of task.again")
        self.again = Again(token, args)
        return self.again

    def returned(self, value: object) -> Again:
        """The result of a body that has called `task.again`. Raises Permanent if the body has returned something else:
        it is not known which of the two it meant.
        """
        if isinstance(value, Again) and self.again is not None and value.token == self.again.token:
            return value
        raise Permanent(
            "task.again(...) was called, but the body did not return its value: write `return task.again(...)`"
        )

    def _check_place(self, blocks: bool, on_loop: str, in_thread: str) -> None:
        """Refuse a call that is for another kind of body: an async one on the loop, or a plain one in a thread."""
        if self.asleep:
            raise FlowAsleep("this flow is put to sleep: its body can request nothing until it runs again")
        if self.changed is not None:
            raise FlowChanged(self.changed)
        if self.cannot_wait is not None:
            raise RuntimeError(self.cannot_wait)
        self.check_here()
        if blocks != self.raises:
            place, better = ("on the loop", on_loop) if blocks else ("in a thread or process", in_thread)
            raise RuntimeError(f"this body runs {place}: use {better}")

    def check_here(self) -> None:
        """Refuse another thread than the loop's to a body on the loop. Raises RuntimeError."""
        if self.own_loop is not None:
            self.own_loop.check("a task's context")
