"""The engine for commands: each in its own session and process group, all watched by one thread.

| how it ended | outcome | error type |
| --- | --- | --- |
| exited with an expected code | ok | |
| exited with another | failed | `exit_code` |
| killed by a signal that we did not send | failed | `killed_by_signal` |
| could not be started | failed | see `start_errors.py` |
 exited, but other code of the program reaped it | failed | `exit_status_lost` |
 was stopped before it exited, with any exit code | cancelled | `cancelled` |
 does not even die of SIGKILL | abandoned | `abandoned` |

A stop sends SIGTERM to the whole group and SIGKILL after the call's grace; a forced stop sends SIGKILL at once. When
the command has exited, the rest of its group is killed. Descendants that left the group are not killed: the outcome's
`left_behind` lists the running ones, and `escaped` says that one still holds the output.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio
import msgspec

from ...calling import Ended, ErrorInfo, Outcome, ProcessInfo
from ...dispatch.loop_bridge import LoopBridge
from ...processes.os_processes import signal_name
from ..base import BaseEngine, Run
from ..contract import Beat, Call, CommandCall
from ..shortage import in_words
from .start_errors import title_of, why_not_started

if TYPE_CHECKING:
    from .watcher import Child, Watcher

_CLOSING = 1.0  # seconds that the watcher's thread has to end


class _CommandRun(Run, kw_only=True, eq=False):
    child: Child


class CommandEngine(BaseEngine[_CommandRun]):
    """Runs commands. `started` is called on the loop with each started process, before its end is reported; `delayed`,
    each time that one cannot be started for now, with the reason.
    """

    name = "command"

    def __init__(
        self,
        *,
        started: Callable[[int, ProcessInfo], None] | None = None,
        delayed: Callable[[int, Exception], None] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(clock=clock)
        self._tell_started = started
        self._tell_delayed = delayed
        self._watcher: Watcher | None = None  # created with the first command
        self._watcher_closed: anyio.Event | None = None

    def start(self, call: Call, ended: Ended, beat: Beat) -> None:
        """Run the call's command. Raises EngineClosed; ValueError unless the call is new and has one command."""
        line = self._admit(call)
        command = call.command
        if command is None or bool(command.argv) == (command.shell is not None):
            raise ValueError(f"call {call.token}: the command engine needs a command, either argv or shell")
        from .watcher import Child  # noqa: PLC0415 - with the first command: many runtimes run none

        child = Child(call.token, command, call.grace)
        if self._watcher is None:
            self._watcher = self._make_watcher(line)
        self._runs[call.token] = _CommandRun(call=call, ended=ended, beat=beat, child=child)
        self._watcher.start(child)

    def tail(self, token: int) -> str:
        """The last line that the running command has written; "" if it is over or wrote nothing."""
        run = self._runs.get(token)
        return "" if run is None or run.child.output is None else run.child.output.last_line()

    async def close(self, deadline: float) -> None:
        """Stop all commands, wait at most `deadline` seconds, then kill them; the thread ends."""
        await super().close(deadline)
        if self._watcher is not None and self._watcher_closed is not None:
            self._watcher.close()
            self._watcher = None
            with anyio.move_on_after(_CLOSING, shield=True):
                await self._watcher_closed.wait()

    def _make_watcher(self, line: LoopBridge) -> Watcher:
        from .watcher import Watcher  # noqa: PLC0415 - as above

        closed = self._watcher_closed = anyio.Event()
        return Watcher(
            clock=self.clock,
            started=lambda child, info: line.post(self._was_started, child, info),
            delayed=lambda child, error: line.post(self._was_delayed, child, error),
            stuck=lambda child: line.post(self._is_stuck, child),
            ended=lambda child: line.post(self._has_ended, child),
            closed=lambda: line.post(closed.set),
        )

    def _stop(self, run: _CommandRun, *, force: bool) -> None:
        run.child.unwanted = True
        if self._watcher is not None:
            (self._watcher.kill if force else self._watcher.terminate)(run.child)

    def _was_started(self, child: Child, info: ProcessInfo) -> None:
        if self._tell_started is not None:
            self._tell_started(child.token, info)

    def _was_delayed(self, child: Child, error: Exception) -> None:
        if self._tell_delayed is not None and child.token in self._runs:
            self._tell_delayed(child.token, error)

    def _is_stuck(self, child: Child) -> None:
        run = self._runs.get(child.token)
        if run is not None and run.child is child:
            self._abandon(run)

    def _has_ended(self, child: Child) -> None:
        run = self._runs.get(child.token)
        if run is None or run.child is not child:
            self.late_results += 1
            return
        run.began = child.began
        outcome = self._result(run, child)
        if (output := child.output) is not None:
            kept = None if output.path is None else str(output.path)
            outcome = msgspec.structs.replace(
                outcome, output_path=kept, output_size=output.size, output_tail=output.tail()
            )
        cpu, memory = child.used
        outcome = msgspec.structs.replace(
            outcome, exit_code=child.exit_code, escaped=child.escaped, left_behind=child.left_behind,
            cpu_seconds=cpu, peak_memory_bytes=memory,
        )  # fmt: skip
        self._end(run, outcome)

    def _result(self, run: _CommandRun, child: Child) -> Outcome:
        if child.signalled:
            text = "stopped" if child.began is not None else "cancelled before it started"
            if child.began is None and child.held_up is not None:
                text += f", for which it waited: {in_words(child.held_up)}"
            return self._cancelled(run, f"{title_of(child.command)}: {text}")
        if child.failure is not None:
            return self._outcome(run, "failed", error=why_not_started(child.command, child.failure))
        if child.exit_code is not None and child.exit_code in child.command.expected_exit_codes:
            return self._outcome(run, "ok")
        last = "" if child.output is None else child.output.last_line()
        return self._outcome(run, "failed", error=_bad_end(child.command, child.exit_code, last))


def _bad_end(command: CommandCall, code: int | None, last: str) -> ErrorInfo:
    title = title_of(command)
    says = f": {last}" if last else ""
    if code is None:
        text = (
            f"{title} ended, but another part of this program took its exit status; "
            "SIGCHLD must not be ignored, and a handler of it must wait for its own children only"
        )
        return ErrorInfo(type="exit_status_lost", message=text)
    if code < 0:
        hint = " (out of memory?)" if code == -signal.SIGKILL else ""
        return ErrorInfo(type="killed_by_signal", message=f"{title} was killed by {signal_name(-code)}{hint}{says}")
    expected = ", ".join(map(str, command.expected_exit_codes)) or "none"
    return ErrorInfo(type="exit_code", message=f"{title} exited with {code} (expected: {expected}){says}")
