"""The common part of all engines: running calls, exactly one end for each, and closing.

A *run* is an engine's record of one started call. Only `_end` removes it from `_runs`; anything that arrives for a
removed run (a late result, a second end) is counted in `late_results` and dropped.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import anyio
import msgspec

from ...actors.messages.errors import FlowChanged, Permanent
from ...actors.user_code import kind_name, message_of, truth
from ..calling import Ended, ErrorInfo, Outcome, Status
from ..dispatch.loop_bridge import LoopBridge
from ..values import NotSerialisable, checked
from .connection import Connection
from .context import connection_of
from .contract import Beat, Call, EngineClosed
from .failures import describe

_PATIENCE = 1.0  # seconds to wait for forced ends while closing


class Run(msgspec.Struct, kw_only=True, eq=False):
    """One started call. `began` is on the engine's clock (None: not yet); `stopped`: it was asked to end."""

    call: Call
    ended: Ended
    beat: Beat
    began: float | None = None
    stopped: bool = False


_DATA = frozenset({type(None), bool, int, float, str, list, dict, tuple})

R = TypeVar("R", bound=Run)


class BaseEngine(ABC, Generic[R]):
    """The base of an engine. Subclasses start runs, and end each by `_end`."""

    name = ""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.late_results = 0  # results of abandoned calls, dropped
        self.clock = clock
        self._runs: dict[int, R] = {}
        self._line: LoopBridge | None = None  # set while open
        self._emptied: anyio.Event | None = None

    async def open(self) -> None:
        """Prepare to run calls on the running event loop."""
        self.begin()

    def begin(self) -> None:
        """Accept calls from now on. Called on the running event loop, also outside of a task."""
        self._line = LoopBridge()

    @abstractmethod
    def start(self, call: Call, ended: Ended, beat: Beat) -> None:
        """Run the call, as the contract says."""

    def stop(self, token: int, *, force: bool = False) -> bool:
        """Ask the call to end; with `force` do not wait for the body. False if the call is over or unknown."""
        run = self._runs.get(token)
        if run is None:
            return False
        run.stopped = True
        if run.call.context is not None:
            connection_of(run.call.context).cancel()
        self._stop(run, force=force)
        return True

    def tail(self, token: int) -> str:  # noqa: ARG002 - a function prints to the program's own output
        """Nothing: what its calls print is not known."""
        return ""

    def probe(self, worker: str, incarnation: int) -> tuple[int, ...] | None:  # noqa: ARG002 - workers live as long as this
        """The tokens of all running calls: these workers live as long as this program does."""
        return tuple(self._runs)

    def start_worker(self, worker: str, incarnation: int) -> None:
        """Do nothing: its workers have no process of their own."""

    def stop_worker(self, worker: str, incarnation: int, deadline: float) -> None:
        """Do nothing: its workers have no process of their own."""

    def kill_worker(self, worker: str, incarnation: int) -> None:
        """Do nothing: its workers have no process of their own."""

    def forget_worker(self, worker: str) -> None:
        """Do nothing: its workers have no process of their own."""

    def release(self) -> None:
        """Do nothing: no idle resources are kept."""

    async def close(self, deadline: float) -> None:
        """Stop all calls, and wait at most `deadline` seconds, but no longer than the longest grace; then force the
        rest to end.
        """
        line, self._line = self._line, None
        if line is None:
            return
        for token in list(self._runs):
            self.stop(token)
        await self._until_empty(min(deadline, max((run.call.grace for run in self._runs.values()), default=0.0)))
        for token in list(self._runs):
            self.stop(token, force=True)
        await self._until_empty(_PATIENCE)
        for run in list(self._runs.values()):
            self._abandon(run)

    @abstractmethod
    def _stop(self, run: R, *, force: bool) -> None:
        """Make the run end: by asking the body, or by force."""

    def _admit(self, call: Call) -> LoopBridge:
        if self._line is None:
            raise EngineClosed(f"the {self.name} engine is not open: call {call.token} was not started")
        if call.token in self._runs:
            raise ValueError(f"call {call.token} is running already; a token is used once")
        return self._line

    async def _until_empty(self, limit: float) -> None:
        with anyio.move_on_after(limit, shield=True):
            while self._runs:
                self._emptied = anyio.Event()
                await self._emptied.wait()

    def _end(self, run: R, outcome: Outcome) -> None:
        """Report the run's end, unless it was reported before."""
        token = run.call.token
        if self._runs.get(token) is not run:
            self.late_results += 1
            return
        del self._runs[token]
        if run.call.context is not None:
            connection_of(run.call.context).detach()
        if not self._runs and self._emptied is not None:
            self._emptied.set()
        run.ended(outcome)

    def _abandon(self, run: R) -> None:
        if self._runs.get(run.call.token) is run:
            text = "it did not end after it was stopped; its result will be dropped"
            self._end(run, self._outcome(run, "abandoned", error=ErrorInfo(type="abandoned", message=text)))

    def _outcome(self, run: R, status: Status, value: Any = None, **more: Any) -> Outcome:
        duration = 0.0 if run.began is None else self.clock() - run.began
        return Outcome(token=run.call.token, status=status, value=value, duration=duration, **more)

    def _returned(self, run: R, value: Any) -> Outcome:
        """The outcome of a function that returned: checked, since the journal has to store the value.

        Values of conditions, checks and hooks are not stored: they are reduced to a truth value, or to None for hooks.
        What is reported of a step was checked already (`step_call.py`).
        """
        if run.call.kind == "step":
            return self._outcome(run, "ok", value)
        if run.call.kind != "body":
            return self._answered(run, value)
        if (changed := _changed(run.call)) is not None:
            return self._outcome(run, "failed", error=describe(changed, run.call.mask))
        if run.call.context is not None:
            connection = connection_of(run.call.context)
            if connection.again is not None:
                return self._begins_anew(run, connection, value)
        try:
            value = checked(value)
        except NotSerialisable as error:
            info = ErrorInfo(type="result_not_serialisable", message=str(error), permanent=True, category="permanent")
            return self._outcome(run, "failed", error=info)
        return self._outcome(run, "ok", value)

    def _begins_anew(self, run: R, connection: Connection, value: object) -> Outcome:
        try:
            again = connection.returned(value)
        except Permanent as error:
            return self._raised(run, error)
        return self._outcome(run, "again", again.args)

    def _answered(self, run: R, value: Any) -> Outcome:
        kind = run.call.kind
        try:
            if kind == "condition":
                answer = truth(value)
            elif kind == "check":  # returned data (a number, a text, a list) is no verdict: the check has not raised
                answer = value is not False if type(value) in _DATA else truth(value)
            else:
                answer = None
            return self._outcome(run, "ok", answer)
        except Exception as error:
            text = f"the {kind} returned a {kind_name(value)}, which is neither true nor false: {message_of(error)}"
            info = ErrorInfo(type="no_truth", message=text, permanent=True, category="permanent")
            return self._outcome(run, "failed", error=info)

    def _cancelled(self, run: R, text: str) -> Outcome:
        return self._outcome(run, "cancelled", error=ErrorInfo(type="cancelled", message=text))

    def _raised(self, run: R, error: BaseException) -> Outcome:
        return self._outcome(run, "failed", error=describe(_changed(run.call) or error, run.call.mask))


def _changed(call: Call) -> FlowChanged | None:
    """The error with which a body fails whatever it returned or raised: its code contradicts its kept steps."""
    return None if call.flows is None else call.flows.changed(call.token)
