"""Coroutine receives: they run on the pool of runners, and their actors handle no other message meanwhile.

Rules
- The dispatcher itself steps a coroutine receive, so that it knows at each moment whose code is running, without
  a context variable: what the receive sends by a plain `ref.tell` is held back, too. Tasks that it starts are not
  part of it.
- A receive that was abandoned may still run; none of its effects counts.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine
from typing import TYPE_CHECKING, Any

from ...actors.user_code import is_a, shown
from ...actors.users.dead_letters import Reason
from ...actors.users.errors import ActorStopped, NoEventLoop
from ...actors.users.ref import BUSY, Cell, Request, Turn
from .answers import give_answer, give_failure
from .body_context import close
from .cell_host import CellHost
from .effects import Effects
from .mailbox import Mailboxes, details_of
from .runners import BodyCancelled, PoolClosed, RunnerPool

if TYPE_CHECKING:
    from .supervision import Supervisor

__all__ = ["CoroutineReceives", "Hook"]

Hook = Callable[[Cell, BaseException | None], None]


class CoroutineReceives:
    """Runs the coroutine receives of one dispatcher on `runners`; None: there is no event loop.

    The dispatcher sets `supervisor`, which decides about failures.
    """

    supervisor: Supervisor

    def __init__(self, host: CellHost, effects: Effects, mailboxes: Mailboxes, runners: RunnerPool | None) -> None:
        self.runners = runners
        self._host = host
        self._effects = effects
        self._mailboxes = mailboxes

    def begin(
        self, cell: Cell, message: Any, request: Request | None, body: Coroutine[Any, Any, Any], hook: Hook | None
    ) -> None:
        """Give a coroutine receive to a runner. Its cell handles nothing else until the receive has ended.

        hook: called at its end, in place of an answer; for `stopped`.
        """
        turn = Turn(cell, message, request, [], hook)
        cell.first = BUSY
        details = details_of(cell)
        details.turn = turn
        if self.runners is None:
            msg = f"{cell.name} handles {shown(message)} by a coroutine function, which needs an event loop: use run()"
            self._ended(turn, body, None, NoEventLoop(msg))
            return
        if details.context is None:
            details.context = self.runners.context_of(f"actor {cell.name}")
        try:
            turn.running = self.runners.submit(
                partial(self._steps, turn, body),
                partial(self._ended, turn, body),
                context=details.context.copy(),
            )
        except PoolClosed as closed:
            self._ended(turn, body, None, closed)

    def abandon(self, turn: Turn) -> None:
        """Go on without a receive that does not end: it is cancelled, and its past and later effects are dropped."""
        turn.abandoned = True
        self._effects.undo(turn.log)
        name = turn.cell.name
        if turn.hook is None:
            self._host.dead_letters.add(name, turn.message, Reason.ABANDONED)
        if turn.request is not None:
            asked = f"asked {name} {shown(turn.message)}"
            turn.request.fail(ActorStopped(f"{asked}: it was abandoned while it handled this"))
        if turn.cell.details is not None:
            turn.cell.details.turn = None
        running, turn.running = turn.running, None  # `running` references the turn: no collector tracks this cycle
        if running is not None:
            running.abandon()

    @coroutine
    def _steps(self, turn: Turn, body: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Run `body`. During each of its steps it is the present receive."""
        host = self._host
        step: Callable[[Any], Any] = body.send
        argument: Any = None
        try:
            while True:
                host.enter_receive(turn)
                try:
                    waits_for = step(argument)
                except StopIteration as end:
                    return end.value
                finally:
                    host.leave_receive()
                try:
                    argument = yield waits_for
                    step = body.send
                except BaseException as error:
                    argument = error
                    step = body.throw
        finally:
            del argument  # an error's traceback references this frame

    def _ended(self, turn: Turn, body: Coroutine[Any, Any, Any], value: Any, error: BaseException | None) -> None:
        """A coroutine receive has ended, or will never run."""
        if error is not None:
            close(body)
        if turn.abandoned:
            return
        cell, hook, letters = turn.cell, turn.hook, self._host.dead_letters
        details = details_of(cell)
        if error is None:
            if turn.log:
                self._effects.commit(turn.log)
            give_answer(letters, cell, turn.message, turn.request, value)
        else:
            self._effects.undo(turn.log)
            if is_a(error, BodyCancelled) and hook is None:
                self.abandon(turn)  # the whole pool is being cancelled: this is no failure of the actor
            elif hook is None:
                give_failure(letters, cell, turn.message, turn.request, error)
                self.supervisor.failed(cell, error, turn.message)
        details.turn = None
        if hook is not None:
            hook(cell, error)
        elif details.ending is not None:
            self.supervisor.endings.turn_ended(cell)
        elif not details.suspended:
            self._mailboxes.rest(cell)
