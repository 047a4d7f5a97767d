"""Receives: one message is handled, in all the ways but the plain one, which is in runtime/dispatch/batches.py.

Rules
- Asks, control messages, hooks and coroutine receives end in one of two ways: their effects are committed and the
  answer is given, or the effects are undone, the message is a dead letter, and supervision decides.
- A KeyboardInterrupt of the terminal leaves the dispatcher: it is meant for the application. Everything else that a
  receive raises is the actor's failure (`actors/user_code.py`).
- A receive that returns a coroutine goes on in runtime/dispatch/coroutine_receives.py.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

from ...actors.user_code import from_terminal
from ...actors.users.actor import After, Refusal, epoch_of
from ...actors.users.dead_letters import Reason
from ...actors.users.ref import Cell, Request
from .answers import give_answer, give_failure
from .cell_host import CellHost
from .coroutine_receives import CoroutineReceives, Hook
from .effects import Effects
from .endings import START
from .mailbox import Mailboxes

if TYPE_CHECKING:
    from .supervision import Supervisor

__all__ = ["NOT_MERE_ANSWERS", "Receives"]

T = TypeVar("T")

# Any: what a coroutine receive yields and takes is the event loop's affair.
COROUTINE: type[Any] = CoroutineType

NOT_MERE_ANSWERS: tuple[object, ...] = (COROUTINE, Refusal)
"""The types of results that need more work, also when nobody asked."""


class Receives:
    """Runs the receives of one dispatcher. The dispatcher sets `supervisor`, which decides about failures."""

    supervisor: Supervisor

    def __init__(self, host: CellHost, effects: Effects, mailboxes: Mailboxes, coroutines: CoroutineReceives) -> None:
        self.base = contextvars.copy_context()  # each receive runs in a copy of this context, or in one that equals it
        self._host = host
        self._effects = effects
        self._mailboxes = mailboxes
        self._coroutines = coroutines

    # -- for supervision -------------------------------------------------------------------------------------------

    def apart(self, function: Callable[[], T]) -> T:
        """Call users' code outside of any receive, in a context of its own."""
        return self.base.copy().run(function)

    def run_hook(self, cell: Cell, function: Callable[[Any], Any], hook: Hook) -> None:
        """Run `stopped` of an ending actor. `hook` is called when it has ended."""
        host = self._host
        host.current = cell
        try:
            result = self.base.copy().run(function, cell.ctx)
        except BaseException as error:
            self._effects.undo(host.log)
            host.current = None
            hook(cell, error)
            if from_terminal(error):
                raise
            return
        self._effects.commit(host.log)
        if type(result) is COROUTINE:
            self._coroutines.begin(cell, "<stopped>", None, result, hook)
        else:
            hook(cell, None)

    # -- one message -----------------------------------------------------------------------------------------------

    def prepare(self, cell: Cell) -> bool:
        """Look at a cell that has control messages, or has ended. Returns whether its next message may be handled."""
        details = cell.details
        if cell.spec is None:
            return False
        if details is not None and details.suspended:
            details.queued = False
            return False
        mailboxes = self._mailboxes
        mailboxes.put_back(cell)
        control = cell.control
        if not control:
            mailboxes.tend(cell)
            if cell.more or cell.hand:
                return True
            mailboxes.rest(cell)
            return False
        item = control.popleft()
        if item is START:
            self.run(cell, START, None, cell.actor.started)
        elif type(item) is not After:
            self.run(cell, item, None)
        elif cell.ctx is None or item.epoch != epoch_of(cell.ctx):
            host = self._host
            host.dead_letters.add(cell.name, item.message, Reason.STALE_TIMER, host.failure_of(cell))
            mailboxes.rest(cell)
        else:
            self.run(cell, item.message, None)
        return False

    def run(
        self, cell: Cell, message: Any, request: Request | None, started: Callable[[Any], Any] | None = None
    ) -> None:
        """Have one message handled by `receive` of its actor.

        request: the ask that it came with. started: called with the actor's context, in place of `receive`.
        """
        host, effects = self._host, self._effects
        host.current = cell
        effects.request = request
        try:
            result = cell.actor.receive(message, cell.ctx) if started is None else started(cell.ctx)
        except BaseException as error:
            self.failed(cell, message, request, error)
            return
        request, effects.request = effects.request, None  # none if the answer was postponed
        if host.log:
            effects.commit(host.log)
        else:
            host.current = None
        if type(result) is COROUTINE:
            self._coroutines.begin(cell, message, request, result, None)
            return
        give_answer(host.dead_letters, cell, message, request, result)
        self._mailboxes.rest(cell)

    def took(self, cell: Cell, message: Any, request: Request | None, result: Any) -> bool:
        """Handle the result of a receive. True if it is a coroutine, which now runs on."""
        if type(result) is COROUTINE:
            self._coroutines.begin(cell, message, request, result, None)
            return True
        give_answer(self._host.dead_letters, cell, message, request, result)
        return False

    def failed(self, cell: Cell, message: Any, request: Request | None, error: BaseException) -> None:
        """Handle the error of a receive. Raises it again if it is an interrupt of the terminal."""
        host, effects = self._host, self._effects
        effects.undo(host.log)
        effects.request = None
        give_failure(host.dead_letters, cell, message, request, error)
        self.supervisor.failed(cell, error, message)
        host.current = None
        if from_terminal(error):
            raise error
