"""Mailboxes: they queue a cell's messages, and release them when the cell's actor ends.

Rules
- If the mailbox is full, or the actor has stopped, a message becomes a dead letter at once. The caller of an ask gets
  an error instead.
- A cell with messages is in the run queue once. After the cell's turn, `rest` puts it there again, or makes it idle.
- Control messages overtake data, and their number has no limit. An actor that has not stopped accepts each of them.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ...actors.user_code import message_of, shown
from ...actors.users.actor import After
from ...actors.users.dead_letters import DeadLetters, Reason
from ...actors.users.errors import ActorStopped
from ...actors.users.ref import BUSY, NOTHING, Cell, CellDetails, PendingOffer, Request
from .actor_failures import Failures
from .cell_host import CellHost

__all__ = ["Mailboxes", "details_of"]


def details_of(cell: Cell) -> CellDetails:
    """Return the second record of a cell, with the rarely used fields; it is made on first use."""
    if cell.details is None:
        cell.details = CellDetails()
    return cell.details


class Mailboxes:
    """The mailboxes of the actors of one dispatcher. `failures` are the last errors of actors."""

    def __init__(self, host: CellHost, dead_letters: DeadLetters, failures: Failures) -> None:
        self._host = host
        self._dead_letters = dead_letters
        self._failures = failures

    # -- into the mailbox ------------------------------------------------------------------------------------------

    def admit(self, cell: Cell, message: Any) -> bool:
        """Accept a message that `tell` does not handle: the second of a mailbox, or one for a full mailbox."""
        if cell.spec is None:
            reason = Reason.STOPPED
        elif cell.has_room():
            if cell.more is None:
                cell.more = []
            cell.more.append(message)
            return True
        else:
            reason = Reason.MAILBOX_FULL
        if type(message) is not Request:  # the asker gets an error
            self.drop(cell, message, reason)
        return False

    def drop(self, cell: Cell, message: Any, reason: Reason) -> None:
        """Record a dead letter for an actor that has ended or has no room."""
        failed = reason is Reason.STOPPED or (cell.details is not None and cell.details.suspended)
        self._dead_letters.add(cell.name, message, reason, self._failures.of(cell) if failed else None)

    def control(self, cell: Cell, message: Any) -> None:
        """Put a control message into a cell's own queue for these. Only a stopped actor refuses it."""
        if cell.spec is None:
            self._drop_control(cell, message)
            return
        control = cell.control
        if control is None:
            control = cell.control = deque()
        control.append(message)
        if cell.first is NOTHING:
            cell.first = BUSY
            host = self._host
            host.ready.append(cell)
            if host.parked:
                host.wake()

    def wait_for_room(self, cell: Cell, offer: PendingOffer) -> None:
        """Let a sender wait for room. The dispatcher accepts its offer after the cell has handled messages."""
        details = details_of(cell)
        if details.offers is None:
            details.offers = deque()
        details.offers.append(offer)
        if cell.control is None:
            cell.control = deque()

    def rest(self, cell: Cell) -> None:
        """End the turn of a cell: put the cell into the run queue if it has more messages, else make it idle."""
        if cell.control is not None:
            self.tend(cell)
        if cell.first is BUSY and not cell.control and cell.hand is None:
            more = cell.more
            if not more:
                cell.more = None
                cell.first = NOTHING
                return
            if len(more) == 1:  # needs no batch
                cell.more = None
                cell.first = more[0]
        host = self._host
        host.ready.append(cell)
        if host.parked:
            host.wake()

    def put_back(self, cell: Cell) -> None:
        """Move the message in `first` to the head of the other messages, so that `first` can hold another one."""
        if cell.first is NOTHING or cell.first is BUSY:
            return
        if cell.more is None:
            cell.more = []
        cell.more.insert(0, cell.first)
        cell.first = BUSY

    def tend(self, cell: Cell) -> None:
        """Accept offers while there is room; after the last one, clear the cell's special state."""
        offers = None if cell.details is None else cell.details.offers
        while offers and (offers[0].gone or cell.has_room()):
            offer = offers.popleft()
            if offer.gone:
                continue
            offer.gone = True
            if cell.more is None:
                cell.more = []
            cell.more.append(offer.message)
            offer.waiter.set()
        if not offers and not cell.control:
            cell.control = None

    def take_back(self, cell: Cell) -> None:
        """Take the newest message out of a mailbox. The caller makes sure that no message was sent after it."""
        more = cell.more
        if more:
            more.pop()
            if not more:
                cell.more = None
        else:
            cell.first = NOTHING
            self._host.ready.pop()

    # -- the end of a mailbox ---------------------------------------------------------------------------------------

    def _drop_control(self, cell: Cell, message: Any) -> None:
        if type(message) is After:
            self._dead_letters.add(cell.name, message.message, Reason.STALE_TIMER, self._failures.of(cell))
        else:
            self.drop(cell, message, Reason.STOPPED)

    def end_mail(self, cell: Cell) -> None:
        """Fail the asks that wait for an ended actor, and make its other messages dead letters."""
        self.put_back(cell)
        for message in (*reversed(cell.hand or ()), *(cell.more or ())):
            if type(message) is Request:
                text = f"asked {cell.name} {shown(message.message)}: it stopped before its turn"
                message.fail(self._stopped(cell, text))
            else:
                self.drop(cell, message, Reason.STOPPED)
        for message in cell.control or ():
            self._drop_control(cell, message)
        details = cell.details
        if details is None:
            return
        for offer in details.offers or ():
            if not offer.gone:
                offer.gone = True
                text = f"offered {cell.name} {shown(offer.message)}: it stopped while this waited for room"
                offer.error = self._stopped(cell, text)
                offer.waiter.set()
        self.fail_owed(cell, "stopped")

    def fail_owed(self, cell: Cell, what: str) -> None:
        """Fail the asks whose answers the stopped actor had postponed."""
        details = cell.details
        while details is not None and details.owed:
            request = next(iter(details.owed))
            del details.owed[request]
            text = f"asked {cell.name} {shown(request.message)}: it {what} before it gave its postponed answer"
            request.fail(self._stopped(cell, text))

    def _stopped(self, cell: Cell, text: str) -> ActorStopped:
        """The error for a caller that waits for an actor that has ended or was restarted."""
        failure = self._failures.of(cell)
        error = ActorStopped(text if failure is None else f"{text}. It failed: {message_of(failure)}")
        error.__cause__ = failure
        return error
