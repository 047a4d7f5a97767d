"""Turns: one message handled, in all the ways but the plain one, which is in the dispatcher's own loop.

Rules
- Asks, control messages, hooks and coroutine receives end in one of two ways: what they did is committed and the answer
  is given, or it is undone, the message is a dead letter, and supervision decides.
- A coroutine receive is stepped by us, so that the dispatcher knows at each moment whose code is running, without
  a context variable: what it sends by a plain `ref.tell` is held back too. Tasks that it starts are on their own.
- A turn that was abandoned may still run; nothing that it does counts.
- A KeyboardInterrupt of the terminal leaves the dispatcher: it is meant for the application. Everything else that is
  raised is the actor's failure, whatever it is (`actors/user_code.py`).
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Coroutine, Generator
from types import CoroutineType, coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from ...actors.user_code import called, from_terminal, is_a, shown
from ...actors.users.actor import After, Refusal
from ...actors.users.dead_letters import DeadLetters, Reason
from ...actors.users.errors import ActorStopped, NoEventLoop, ReceiveFailed
from ...actors.users.ref import BUSY, Cell, Request, Turn
from ..text.logs import Line, write
from ..text.tracebacks import traceback_of
from .actor_failures import ActorTrouble
from .body_context import close
from .clock import Clock
from .mailbox import Mailroom
from .runners import BodyCancelled, PoolClosed, RunnerPool
from .supervision import START

if TYPE_CHECKING:
    from .supervision import Supervisor

T = TypeVar("T")

# Any: what a coroutine receive yields and takes is the event loop's affair.
COROUTINE: type[Any] = CoroutineType

NOT_MERE_ANSWERS: tuple[object, ...] = (COROUTINE, Refusal)
"""What a receive may return that has to be seen to, also when nobody asked."""

Hook = Callable[[Cell, BaseException | None], None]


class Turns(Mailroom):
    """The dispatcher as far as it runs single messages."""

    lives: Supervisor
    runners: RunnerPool | None
    on_trouble: Callable[[ActorTrouble], object] | None

    def __init__(self, clock: Clock | None, dead_letters: DeadLetters | None) -> None:
        super().__init__(clock, dead_letters)
        self._base = contextvars.copy_context()
        self._context = self._base.copy()
        self.deaf = 0  # calls of `on_trouble` that raised

    # -- what supervision asks for ---------------------------------------------------------------------------------

    def apart(self, function: Callable[[], T]) -> T:
        """Call users' code outside of any receive, in a context of its own."""
        return self._base.copy().run(function)

    def tell_trouble(self, trouble: ActorTrouble) -> None:
        """Tell of an actor that failed. Outside of any receive, since others' code hears of it. Raises nothing."""
        if self.on_trouble is None:
            trace = None if trouble.error is None else traceback_of(trouble.error)
            write(Line(trouble.severity, trouble.event, trouble.text, {}, trouble.actor, trace))
            return
        try:
            called(self.on_trouble, trouble)
        except Exception:
            self.deaf += 1

    def run_hook(self, cell: Cell, function: Callable[[Any], Any], hook: Hook) -> None:
        """Run `stopped` of an ending actor, and tell `hook` when it is over."""
        self.current = cell
        try:
            result = self._base.copy().run(function, cell.ctx)
        except BaseException as error:
            self.undo(self.log)
            self.current = None
            hook(cell, error)
            if from_terminal(error):
                raise
            return
        self.commit(self.log)
        if type(result) is COROUTINE:
            self._begin_turn(cell, "<stopped>", None, result, hook)
        else:
            hook(cell, None)

    def abandon(self, turn: Turn) -> None:
        """Do without a coroutine receive that does not end: it is cancelled, and nothing it did or does counts."""
        turn.abandoned = True
        self.undo(turn.log)
        name = turn.cell.name
        if turn.hook is None:
            self.dead_letters.add(name, turn.message, Reason.ABANDONED)
        if turn.request is not None:
            asked = f"asked {name} {shown(turn.message)}"
            turn.request.fail(ActorStopped(f"{asked}: it was abandoned while it handled this"))
        if turn.cell.life is not None:
            turn.cell.life.turn = None
        running, turn.running = turn.running, None  # which holds the turn: a circle that no collector knows of
        if running is not None:
            running.abandon()

    # -- one message -----------------------------------------------------------------------------------------------

    def _prepare(self, cell: Cell) -> bool:
        """Look at a cell that needs more than its next message handled. True if that may be handled now."""
        life = cell.life
        if cell.spec is None:
            return False
        if life is not None and life.suspended:
            life.queued = False
            return False
        self.put_back(cell)
        lane = cell.control
        if not lane:
            self._tend(cell)
            if cell.more or cell.hand:
                return True
            self.rest(cell)
            return False
        item = lane.popleft()
        if item is START:
            self._run(cell, cell.actor.started, (cell.ctx,), START, None)
        elif type(item) is not After:
            self._run_receive(cell, item, None)
        elif cell.ctx is None or item.epoch != cell.ctx.epoch:
            self.dead_letters.add(cell.name, item.message, Reason.STALE_TIMER, self.failure_of(cell))
            self.rest(cell)
        else:
            self._run_receive(cell, item.message, None)
        return False

    def _run_receive(self, cell: Cell, message: Any, request: Request | None) -> None:
        self._run(cell, cell.actor.receive, (message, cell.ctx), message, request)

    def _run(
        self, cell: Cell, function: Callable[..., Any], args: tuple[Any, ...], message: Any, request: Request | None
    ) -> None:
        """Have one message handled by a method of its actor, and see to what follows."""
        self.current = cell
        self._request = request
        try:
            result = function(*args)
        except BaseException as error:
            self._failed(cell, message, request, error)
            return
        request, self._request = self._request, None  # none if its answer was put off
        self.commit(self.log)
        if not self._took(cell, message, request, result):
            self.rest(cell)

    def _took(self, cell: Cell, message: Any, request: Request | None, result: Any) -> bool:
        """See to what a receive returned. True if that was a coroutine, which runs on from here."""
        if type(result) is COROUTINE:
            self._begin_turn(cell, message, request, result, None)
            return True
        self._answer(cell, message, request, result)
        return False

    def _answer(self, cell: Cell, message: Any, request: Request | None, result: Any) -> None:
        if type(result) is not Refusal:
            if request is not None:
                request.answer(result)
        elif request is not None:
            request.fail(result.error)
        else:
            self.dead_letters.add(cell.name, message, Reason.REFUSED, result.error)

    def _failed(self, cell: Cell, message: Any, request: Request | None, error: BaseException) -> None:
        """A receive raised."""
        self.undo(self.log)
        self._request = None
        self._record_failure(cell, message, request, error)
        self.lives.failed(cell, error, message)
        self.current = None
        if from_terminal(error):
            raise error

    def _record_failure(self, cell: Cell, message: Any, request: Request | None, error: BaseException) -> None:
        self.dead_letters.add(cell.name, message, Reason.FAILED, error)
        if request is not None:
            failure = ReceiveFailed(f"asked {cell.name} {shown(message)}: it raised {shown(error)}")
            failure.__cause__ = error
            request.fail(failure)

    # -- coroutine receives ----------------------------------------------------------------------------------------

    def _begin_turn(
        self, cell: Cell, message: Any, request: Request | None, body: Coroutine[Any, Any, Any], hook: Hook | None
    ) -> None:
        """Hand a coroutine receive to a runner. Its cell handles nothing else until `_turn_over`."""
        turn = Turn(cell, message, request, [], hook)
        cell.first = BUSY
        self.life(cell).turn = turn
        if self.runners is None:
            msg = f"{cell.name} handles {shown(message)} by a coroutine function, which needs an event loop: use run()"
            self._turn_over(turn, body, None, NoEventLoop(msg))
            return
        try:
            turn.running = self.runners.submit(
                lambda: self._steps(turn, body),
                lambda value, error: self._turn_over(turn, body, value, error),
                about=f"actor {cell.name}",
            )
        except PoolClosed as closed:
            self._turn_over(turn, body, None, closed)

    @coroutine
    def _steps(self, turn: Turn, body: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run `body`, naming it as the present turn during each of its steps."""
        step: Callable[[Any], Any] = body.send
        argument: Any = None
        try:
            while True:
                self.stand_in(turn)
                try:
                    waits_for = step(argument)
                except StopIteration as end:
                    return end.value
                finally:
                    self.stand_alone()
                try:
                    argument = yield waits_for
                    step = body.send
                except BaseException as error:
                    argument = error
                    step = body.throw
        finally:
            del argument  # an error's traceback holds this frame

    def _turn_over(self, turn: Turn, body: Coroutine[Any, Any, Any], value: Any, error: BaseException | None) -> None:
        """A coroutine receive has ended, or will never run."""
        close(body)
        if turn.abandoned:
            return
        cell, hook = turn.cell, turn.hook
        life = self.life(cell)
        if error is None:
            self.commit(turn.log)
            self._answer(cell, turn.message, turn.request, value)
        else:
            self.undo(turn.log)
            if is_a(error, BodyCancelled) and hook is None:
                self.abandon(turn)  # the whole pool is being cancelled: no failure of the actor's
            elif hook is None:
                self._record_failure(cell, turn.message, turn.request, error)
                self.lives.failed(cell, error, turn.message)
        life.turn = None
        if hook is not None:
            hook(cell, error)
        elif life.ending is not None:
            self.lives.endings.turn_ended(cell)
        elif not life.suspended:
            self.rest(cell)
