"""The interface between the runtime and its engines: one call in, one outcome out.

The contract, which one test file checks for every engine:
- `start` returns at once. For each started call `ended` is called exactly once, on the loop's thread, never inside
  `start` or `stop`, with an outcome that carries the call's token. `ended` and `beat` must not raise.
- `stop` asks a call to end; `ended` still reports how it ends. It returns False for a token that was never started or
  is over, and has no effect then. A second `stop` is allowed; `force=True` does not wait until the body reacts.
- Whatever a body does (raises anything, returns anything, never ends) is an outcome, never an engine's error.
- `beat(token, details)` is called on the loop, for heartbeats of calls that are not over; heartbeats in quick
  succession may be merged into the last one. A checkpoint (`details` is a `Checkpoint`) is not merged with heartbeats.
- A worker is an incarnation (`worker`, `incarnation`) that runs calls. `probe` asks whether it lives: an engine that
  runs bodies in this process returns the tokens of all that it runs; one with separate processes returns None, and the
  process's answer comes later, or never. A call whose worker died under it ends as `lost`.
- `open` is awaited before the first `start`. `close(deadline)` stops all calls and returns when all ended, or after
  `deadline` seconds, when the remaining calls ended as abandoned. Then `start` raises `EngineClosed`.

 outcome | what happened | value | error |
 --- | --- | --- | --- |
 `ok` | it returned, or exited with an expected code (also after a stop that it ignored) | yes | |
 `failed` | it raised, exited otherwise, died, could not start, or returned a value that JSON cannot hold | | yes |
 `cancelled` | it ended because of `stop` | | yes |
 `lost` | its worker died under it: what it did is not known | | `worker_lost` |
 `abandoned` | it could not be ended; its late result will be dropped | | yes |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec

from ..calling import Ended, Workers
from ..text.secrets import Mask
from .context import TaskContext

if TYPE_CHECKING:
    from .steps import FlowFacts, FlowSource

CallKind = Literal["body", "condition", "check", "cancel_hook", "hook", "step"]


class CommandCall(msgspec.Struct, frozen=True, kw_only=True):
    """A command line to run. Exactly one of `argv` and `shell` is given.

    env is added to the runtime's own environment. Standard input is empty. Both output streams go, in order, to
    `output_path` (None: counted and shown, not kept), of which at most `output_limit` bytes are kept: the head and the
    tail. No folder below `output_root` may be a link. mask: hides secrets in all kept or shown output. called: the name
    of the command in errors, if its own command line would be meaningless.
    """

    argv: list[str] = []
    shell: str | None = None
    cwd: str | None = None
    env: dict[str, str] = {}
    expected_exit_codes: list[int] = msgspec.field(default_factory=lambda: [0])
    output_path: Path | None = None
    output_root: Path | None = None
    output_limit: int = 1_048_576
    mask: Mask | None = None
    called: str | None = None


class ProcessCall(msgspec.Struct, frozen=True, kw_only=True):
    """A function to run in a worker's process. It gets the call's context if it takes one.

    function: its import path (`runtime/functions/import_paths.py`). Its printed output goes to `output_path`, as a
    command's does, if there is any. recycle_after: maximum bodies that one process runs. secrets: the values of its
    secrets, by their names. flow: None if it cannot take steps. Only on Ray: on_loop: the function is async. Together
    with a command, it says where the command runs, and `function` is empty; results: the JSON of its dependencies'
    results; text: identifies the source text of the function's module (`functions.source_of`).
    """

    function: str
    worker: str
    incarnation: int
    output_path: Path | None = None
    output_root: Path | None = None
    output_limit: int = 1_048_576
    recycle_after: int | None = None
    secrets: dict[str, str] = {}
    on_loop: bool = False
    results: bytes | None = None
    text: str | None = None
    flow: FlowFacts | None = None


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to run: a function or a command.

    token: the fencing token, never used twice by one runtime; tokens of bodies are never used twice in one file, and
    rise. grace: seconds between the polite stop and the kill. func takes nothing or the context; engines of other kinds
    use `command` or `process` instead. bound: the fields of log lines inside a function. mask: hides the call's secrets
    in reports about it. about: the task it belongs to, for people. flows: keeps the steps of a body.
    """

    token: int
    kind: CallKind = "body"
    func: Callable[..., Any] | None = None
    command: CommandCall | None = None
    process: ProcessCall | None = None
    context: TaskContext | None = None
    bound: dict[str, Any] | None = None
    grace: float = 10.0
    mask: Mask | None = None
    about: str = ""
    flows: FlowSource | None = None


class EngineClosed(RuntimeError):  # noqa: N818 - a state, as in the standard library's names
    """A call was given to an engine that is not open. Nothing was started."""


Beat = Callable[[int, Any], None]


class Engine(Workers, Protocol):
    """The engine that a worker executes on, with the methods of `Workers`. The module's docstring has the contract.

    `BaseEngine` (`base.py`) implements all but `name`, `start` and `_stop`.
    """

    @property
    def name(self) -> str:
        """The name of the engine in specifications: "loop", "thread", "command", ..."""
        ...

    async def open(self) -> None:
        """Prepare to run calls on the running event loop."""
        ...

    def start(self, call: Call, ended: Ended, beat: Beat) -> None:
        """Run the call. Raises EngineClosed if not open, ValueError for a call that it cannot run."""
        ...

    def stop(self, token: int, *, force: bool = False) -> bool:
        """Ask the call to end; False if the call is over or unknown."""
        ...

    def tail(self, token: int) -> str:
        """The last line that the call has printed; "" if it is over, printed nothing, or that is not known."""
        ...

    async def close(self, deadline: float) -> None:
        """Stop everything, waiting at most `deadline` seconds."""
        ...
