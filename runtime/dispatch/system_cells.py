"""System cells: parts of the runtime that get messages from the dispatcher. They have no bound and no supervision.

Rules
- A system cell has two queues. Urgent messages (timers, commands of people) are handled before data, and between the
  turns of other cells, too.
- An error of a system cell is a bug of the runtime: it goes to `ErrorReporter.on_error`, and the cell goes on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, cast

from ...actors.users.ref import SYSTEM, SystemRef
from .cell_host import CellHost
from .reports import ErrorReporter

if TYPE_CHECKING:
    from ...actors.users.host import ActorHost

__all__ = ["SystemCells"]


class _DroppingHost:
    """The host of system cells after the close: it drops their messages.

    The garbage collector does not track cells. A cell with a reference to its dispatcher would keep the dispatcher, and
    all its objects, for ever.
    """

    current = None
    parked = False
    ready: ClassVar[deque[Any]] = deque(maxlen=0)

    def call_threadsafe(self, *_: object) -> bool:
        """Drop the call."""
        return False


_NOWHERE = cast("ActorHost", _DroppingHost())


class SystemCells:
    """The system cells of one dispatcher."""

    def __init__(self, host: CellHost, reports: ErrorReporter) -> None:
        self.cells: list[SystemRef] = []
        self._host = host
        self._reports = reports

    def spawn(self, receive: Callable[[Any], object], name: str) -> SystemRef:
        """Start a system cell. `receive` returns True after much work: its turn ends then."""
        cell = SystemRef(self._host, receive, name, deque(), deque(), SYSTEM)
        self.cells.append(cell)
        return cell

    def run(self, cell: SystemRef, limit: int) -> int:
        """Give a cell its turn: up to `limit` messages. Returns how many; `limit` if its `receive` returned True."""
        host = self._host
        host.current = None
        receive, urgent, data = cell.receive, cell.urgent, cell.data
        handled = 0
        while handled < limit:
            if urgent:
                message = urgent.popleft()
            elif data:
                message = data.popleft()
            else:
                cell.queued = False
                return handled
            handled += 1
            try:
                if receive(message):
                    handled = limit
            except Exception as error:
                host.ready.append(cell)
                self._reports.on_error(error)
                return handled
        host.ready.append(cell)
        return handled

    def run_urgent(self, cell: SystemRef, limit: int) -> None:
        """Handle up to `limit` urgent messages of a cell, outside of its turn; the cell stays in the run queue."""
        self._host.current = None
        receive, urgent = cell.receive, cell.urgent
        for _ in range(limit):
            if not urgent:
                return
            try:
                if receive(urgent.popleft()):
                    return
            except Exception as error:
                self._reports.on_error(error)

    def close(self) -> None:
        """Cut the links of all cells: they drop their messages from now on."""
        for cell in self.cells:
            cell.receive = _ignore
            cell.urgent.clear()
            cell.data.clear()
            cell.host, cell.urgent, cell.data = _NOWHERE, deque(maxlen=0), deque(maxlen=0)


def _ignore(_: Any) -> None:
    """A closed part of the runtime takes no messages."""
