"""Durable steps in the view of a body: the functions that it calls as steps, in any process (DESIGN section 10).

Rules
- A step is identified by its name (the last part of its function's path, unless `name` is given) and its number: the
  number of the call among the calls of that name in its flow.
- The policies of a step belong to its function: so they never have the same names as the function's own arguments.
- A step with a tool holds a unit of it while its function runs (`actors/workers/tool_uses.py`).
- A step with an engine, or with capabilities, runs on a worker that has them (`actors/workers/step_calls.py`). To run
  in another process, its function needs an import path, and arguments that JSON holds.
- A step that is called outside of a flow is a plain call of its function. A step inside the function of another step
  is refused: only the outer one would be kept.

`flow.py` runs the steps.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Coroutine, Iterable
from contextvars import ContextVar
from copy import copy
from itertools import islice
from types import FunctionType
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Protocol, TypeVar, cast, overload

import msgspec

from ...actors.records.base import MaybeRaw
from ...actors.records.step import StepRecord
from ...actors.spec.model import OF_PROCESSES, ON_CLUSTER, EngineName, Retry
from ...actors.spec.names import name_problem
from ...actors.times import Duration, seconds
from ...actors.user_code import asyncio_mark, is_a, kind_name, plain_text, shown
from ..calling import ErrorInfo
from ..dispatch.abandoned_threads import running_body
from ..functions.import_paths import NoPath, path_of
from ..functions.import_paths import named as module_name
from ..functions.signatures import is_async

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random
    from typing import Concatenate, Self

    from ...actors.messages.errors import FlowChanged
    from ..text.secrets import Mask
    from .connection import Connection
    from .flow_port import BodyLimits
    from .receiving import Wanted

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Q = ParamSpec("Q")
S = TypeVar("S")

ONCE = Retry(max_attempts=1)
"""The retries of a step that sets none: it is tried once."""
OWN = "task."
"""The prefix of the names of the library's own steps: `task.sleep`, `task.now`."""
LONGEST_NAME = 200
"""Characters of the name of a step."""
MOST_NAMES = 1_000
"""Capabilities of one step."""
_OF_ASYNC, _OF_PLAIN = ("loop", ON_CLUSTER), ("thread", "process", ON_CLUSTER)


class Flow(Protocol):
    """The steps of one attempt's body (`flow.py`)."""

    def call(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        """Call a step from an async body. Its number is taken at once; the coroutine runs it."""
        ...

    def call_dated(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, tuple[Any, float]]:
        """`call`, and when the step ended (UTC epoch seconds): the same time in each replay."""
        ...

    def call_blocking(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a step from a plain function, in the thread of the body."""
        ...

    async def gather(self, bound: Sequence[BoundStep[Any]], most: int | None) -> list[Any]:
        """Run several steps at a time, `most` at most. Their numbers follow the order in which they are listed."""
        ...

    def gather_blocking(self, bound: Sequence[BoundStep[Any]], most: int | None) -> list[Any]:
        """`gather` for a plain function, in the thread of the body."""
        ...

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        """Wait so many seconds, durably."""
        ...

    def sleep_blocking(self, seconds: float) -> None:
        """`sleep` for a plain function, in the thread of the body."""
        ...

    def receive(self, wanted: Wanted) -> Coroutine[Any, Any, Any]:
        """Receive a message."""
        ...

    def receive_blocking(self, wanted: Wanted) -> Any:
        """`receive` for a plain function, in the thread of the body."""
        ...

    def send(self, job_id: str, name: str, value: object, task: str | None) -> Coroutine[Any, Any, None]:
        """Send a message to a job, or to one of its tasks."""
        ...

    def send_blocking(self, job_id: str, name: str, value: object, task: str | None) -> None:
        """`send` for a plain function, in the thread of the body."""
        ...

    def publish(self, name: str, value: object) -> Coroutine[Any, Any, None]:
        """Persist a value that others can read."""
        ...

    def publish_blocking(self, name: str, value: object) -> None:
        """`publish` for a plain function, in the thread of the body."""
        ...

    def fact(self, name: str, make: Callable[[], R], label: str = "") -> Coroutine[Any, Any, R]:
        """A value that is made once and then kept: the time, an id, a random number. `make` makes plain JSON."""
        ...

    def fact_blocking(self, name: str, make: Callable[[], R], label: str = "") -> R:
        """`fact` for a plain function, in the thread of the body."""
        ...

    def version(self, name: str, latest: int) -> Coroutine[Any, Any, int]:
        """The version of a part of the body that this flow began with."""
        ...

    def version_blocking(self, name: str, latest: int) -> int:
        """`version` for a plain function, in the thread of the body."""
        ...

    @property
    def random(self) -> Random:
        """The runtime's source of randomness."""
        ...

    @property
    def on_loop(self) -> bool:
        """Whether the present thread is the one of the event loop: there steps are awaited."""
        ...

    def now(self) -> float:
        """UTC epoch seconds."""
        ...


class GivenUpWaits(Protocol):
    """The waits of one attempt's body that are no steps, and that it has given up (`flow.py`)."""

    async def give_up_wait_again(self, name: str, number: int) -> None:
        """Be given up again if the body has given up its wait of that name and number before."""
        ...

    async def gave_up_wait(self, name: str, number: int, way: str) -> None:
        """Persist that the body has given up a wait. way: as in `StepRecord.given_up`."""
        ...


class FlowSource(Protocol):
    """Gives each body its flow."""

    def of(self, token: int, mask: Mask | None, connection: Connection | None) -> Flow:
        """The flow of the attempt under that token. mask: of its secrets. connection: of its body, if it has a context.

        Raises AttemptOver if the attempt has ended.
        """
        ...

    def waits_of(
        self, token: int, mask: Mask | None, connection: Connection | None, *, new: bool
    ) -> GivenUpWaits | None:
        """The flow of the attempt under that token, for waits that are no steps. new: also if its body has taken no
        step, and no step of it is kept. Raises AttemptOver as `of` does.
        """
        ...

    @property
    def limits(self) -> BodyLimits:
        """Finds the scopes and time limits of the body around a call. Only on the loop."""
        ...

    def changed(self, token: int, /) -> FlowChanged | None:
        """The error of a call of that attempt's body that the kept steps contradict, whatever the body did with it."""
        ...


class MessageRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request for a message of that name. step: the record to persist if there is no message and `keep` is set: the
    step waits, or has ended without a message.
    """

    name: str
    step: StepRecord
    keep: bool


class ToolRequest(msgspec.Struct, frozen=True, array_like=True):
    """A request for a unit of a tool, for a step that is about to run. number: of the use, among those of the body.

    alone: whether no other step of the body runs.
    """

    number: int
    tool: str
    step: StepRecord
    alone: bool = True


class StepRun(msgspec.Struct, frozen=True, array_like=True):
    """A request to run a step on a worker. number: of the run, among those of the body. step: its record, with the
    engine and the capabilities. moves: it may run on a cluster if no other worker can run it.

    path: the import path of its function, and call: its arguments, by position and by name, as JSON; None if another
    process cannot have them. on_loop: the function is async. timeout: seconds from its beginning. alone: whether no
    other step of the body runs.
    """

    number: int
    step: StepRecord
    moves: bool
    path: str | None
    call: MaybeRaw
    on_loop: bool
    timeout: float | None
    alone: bool = True


class StepRunEnd(msgspec.Struct, frozen=True, array_like=True):
    """How a step has ended on a worker. step: its record, with the worker. value: what its function has returned.

    error: why it has failed; path: of the error's class, arguments: from which it can be made again, decoded JSON.
    late: its time limit was over.
    """

    step: StepRecord
    value: Any = None
    error: ErrorInfo | None = None
    path: str = ""
    arguments: Any = None
    late: bool = False


class FlowFacts(msgspec.Struct, frozen=True, array_like=True):
    """The facts that another process needs to replay a flow. now: the runtime's clock (UTC epoch seconds).

    task: the key of the task. round: the number of failed and deferred attempts before this one. kept: how many steps
    the journal keeps.
    """

    task: int
    round: int
    kept: int
    now: float


inside: ContextVar[str | None] = ContextVar("callboard step", default=None)
"""The label of the step whose function runs here."""


class Step(Generic[P, R_co]):
    """A function that is durable inside a flow: made by `step`."""

    def __init__(  # noqa: PLR0917 - the arguments of `step`
        self,
        func: Callable[P, R_co],
        name: str | None = None,
        retry: Retry = ONCE,
        timeout: Duration | None = None,
        tool: str | None = None,
        engine: EngineName | None = None,
        capabilities: Iterable[str] = (),
    ) -> None:
        if isinstance(func, Step):
            raise TypeError(f"{func!r} is a step already")
        if is_a(func, staticmethod) or is_a(func, classmethod):
            raise TypeError(f"step takes a function, not {type(func).__name__}: put @step below @{type(func).__name__}")
        if not callable(func):
            raise TypeError(f"step takes a function, not {type(func).__name__}")
        given: Any = func
        named: Any = given.func if is_a(func, functools.partial) else func
        path: str = getattr(named, "__qualname__", "")
        self.name = _checked(path.rpartition(".")[2] if name is None else name, named=name is not None)
        self.path = name or f"{module_name(str(getattr(named, '__module__', '')))}:{path}"
        self.retry = checked_retry(retry, f"step {self.name!r}")
        self.timeout = None if timeout is None else seconds(timeout)
        self.tool = None if tool is None else checked_tool(tool, "the tool of a step")
        self.on_loop = is_async(func)
        self._mark()
        self.capabilities = _checked_capabilities(capabilities)
        self.engine = None if engine is None else _checked_engine(engine, self.name, on_loop=self.on_loop)
        self.runs_on: str | None = None  # the engine of its worker; None: it runs where its body does
        if self.engine is not None or self.capabilities:
            self.runs_on = self.engine or ("loop" if self.on_loop else "thread")
        self.moves = self.engine is None and self.runs_on is not None  # its worker may be one of a cluster
        self._found: tuple[str | None, str] | None = None  # its import path, or why it has none
        if timeout is not None and not self.on_loop and self.engine not in OF_PROCESSES:
            raise TypeError(
                f"step {self.name!r} is a plain function, which cannot be stopped in its thread: give the calls that "
                "it makes time limits, or write it as an async function, or run it in a process (engine='process')"
            )
        if self.timeout == 0:
            raise ValueError(
                f"the timeout of step {self.name!r}: a limit of 0 is over before anything starts (leave it out for no "
                "limit of its own)"
            )
        self.given: tuple[tuple[Any, ...], dict[str, Any]] | None = None
        if is_a(func, functools.partial):
            self.given = given.args, given.keywords
        self.func = func
        self._describe(func)
        if self.engine in OF_PROCESSES and "<" in path:
            raise ValueError(self._no_path(f"{path!r} is made inside a function, or has no name"))

    def _mark(self) -> None:
        """Tell whoever asks whether this is a coroutine function (Starlette, a task's body) what its function is."""
        if not self.on_loop:
            return
        if sys.version_info >= (3, 12):
            inspect.markcoroutinefunction(self)

    @property
    def _is_coroutine(self) -> object:
        """What asyncio asks for before Python 3.12."""
        return asyncio_mark() if self.on_loop else None

    def _describe(self, func: Callable[..., Any]) -> None:
        """Take over the function's documentation, and those of its own attributes whose names a step does not use."""
        own: dict[str, object] = getattr(func, "__dict__", {})
        functools.update_wrapper(self, func, updated=())
        for name, value in own.items():
            if not hasattr(self, name):
                setattr(self, name, value)

    def __repr__(self) -> str:
        return f"<Step {self.name}>"

    def import_path(self) -> str:
        """The import path by which another process finds the function. Raises NoPath."""
        if self._found is None:
            try:
                self._found = _path_of(self), ""
            except NoPath as error:
                self._found = None, self._no_path(str(error))
        path, why = self._found
        if path is None:
            raise NoPath(why)
        return path

    def _no_path(self, why: str) -> str:
        return (
            f"step {self.name!r} is to run in another process (engine={self.runs_on!r}), which cannot find its "
            f"function: {why}. Define it at the top level of a module"
        )

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the step in the present flow; without a flow, call the function."""
        flow = present_flow()
        if flow is None:
            if (outer := inside.get()) is not None:  # on a worker
                raise RuntimeError(inside_another(self.name, outer))
            return self.func(*args, **kwargs)
        if self.on_loop:
            return cast("R_co", flow.call(self, args, kwargs))
        return cast("R_co", flow.call_blocking(self, args, kwargs))

    @overload
    def bind(self: Step[Q, Coroutine[Any, Any, R]], /, *args: Q.args, **kwargs: Q.kwargs) -> BoundStep[R]: ...
    @overload
    def bind(self, /, *args: P.args, **kwargs: P.kwargs) -> BoundStep[R_co]: ...
    def bind(self, /, *args: Any, **kwargs: Any) -> BoundStep[Any]:
        """The step with these arguments, for `task.gather`."""
        return BoundStep(self, args, kwargs)

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Self: ...
    @overload
    def __get__(self: Step[Concatenate[S, Q], R], instance: S, owner: type | None = None) -> Step[Q, R]: ...
    def __get__(self, instance: object, owner: type | None = None) -> Any:
        """A step that is a method is bound to its object as any function is."""
        if instance is None:
            return self
        bound = self.of(functools.partial(cast("Callable[..., Any]", self.func), instance))
        vars(bound)["__wrapped__"] = bound.func  # of which `inspect.signature` tells the signature: without the object
        return bound

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call by which it is found again: also those that `functools.partial` has bound."""
        if self.given is None:
            return args, kwargs
        return (*self.given[0], *args), {**self.given[1], **kwargs}

    def of(self, func: Callable[..., Any]) -> Step[..., Any]:
        """Return the step with some arguments of its function given."""
        again: Step[..., Any] = copy(self)
        again.func = func
        again._found = None
        return again

    def instead(self, func: Callable[..., Any]) -> Step[..., Any]:
        """Return the step with another, async function in place of its own, for a test: it is found by its own path."""
        again = self.of(func)
        again.on_loop = True
        again._mark()
        if self.runs_on in OF_PROCESSES:
            again._found = self.import_path(), ""
        return again


class BoundStep(Generic[R_co]):
    """A step with its arguments: one item of `task.gather`, which gives what the step's function returns (awaited)."""

    def __init__(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.step = step
        self.args_given = args
        self.keywords_given = kwargs


@overload
def step(func: Callable[P, R], /, *, name: str | None = None, retry: Retry | None = None,
         timeout: Duration | None = None, tool: str | None = None, engine: EngineName | None = None,
         capabilities: Iterable[str] = ()) -> Step[P, R]: ...  # fmt: skip
@overload
def step(*, name: str | None = None, retry: Retry | None = None, timeout: Duration | None = None,
         tool: str | None = None, engine: EngineName | None = None,
         capabilities: Iterable[str] = ()) -> Callable[[Callable[P, R]], Step[P, R]]: ...  # fmt: skip
def step(
    func: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    tool: str | None = None,
    engine: EngineName | None = None,
    capabilities: Iterable[str] = (),
) -> Any:
    """Make a function a step: inside the body of a task it is durable, elsewhere it is a plain call.

    name: the step's name, and its identity in the history of running flows: a step with a name of its own can be moved
    and renamed (by default the last part of the function's path). retry: how often it is tried (once). timeout: of one
    try. tool: what its function uses: each try has one of the tool's parallel uses, waits while there is none or the
    tool's breaker is open, and counts for that breaker. engine, capabilities: of the worker on which its function runs,
    as a task's; without them it runs where the body does.

    Raises TypeError for an object that is no function, ValueError for a name that is empty or too long, a lambda
    without a name, a time limit of 0, and an engine that cannot run it.
    """
    if func is None:
        return functools.partial(
            step, name=name, retry=retry, timeout=timeout, tool=tool, engine=engine, capabilities=capabilities
        )
    return Step(func, name, ONCE if retry is None else retry, timeout, tool, engine, capabilities)


def present_flow() -> Flow | None:
    """The flow of the body that runs here; None outside of bodies whose steps are durable."""
    call: Any = running_body.get((None, "", None))[2]  # the engine's `Call`
    source: FlowSource | None = getattr(call, "flows", None)
    if source is None:
        return None
    return source.of(call.token, call.mask, None if call.context is None else call.context._connection)


def step_of(func: Callable[..., Any]) -> Step[..., Any]:
    """The step of a function that is called as one: itself, if it is a step already."""
    if isinstance(func, Step):
        return cast("Step[..., Any]", func)
    if type(func) is FunctionType and func.__closure__ is None:
        return _step_of_function(func)
    whole: Any = getattr(func, "func", None)
    if is_a(func, functools.partial) and isinstance(whole, Step):
        part: Any = func
        declared = cast("Step[..., Any]", whole)
        made = declared.of(functools.partial(declared.func, *part.args, **part.keywords))
        made.given = declared.arguments(part.args, part.keywords)
        return made
    return Step(func)


@functools.lru_cache(256)
def _step_of_function(func: FunctionType) -> Step[..., Any]:
    """The step of a function that holds nothing: kept, since to make it takes longer than many functions."""
    return Step(func)


def bound_of(item: object) -> BoundStep[Any]:
    """An item of `task.gather`. Raises TypeError for anything else."""
    if isinstance(item, BoundStep):
        return item  # pyright: ignore[reportUnknownVariableType] - mypy refuses a cast as redundant
    raise TypeError(
        f"gather takes bound steps, not {type(item).__name__}: write step(function).bind(argument, ...), or call "
        "bind of a function that is a step"
    )


def _checked(name: str, *, named: bool) -> str:
    name = plain_text(name, "the name of a step")
    if not named and (not name or name == "<lambda>"):
        raise ValueError("this function has no name by which its step could be found again: step(function, name=...)")
    if not name or len(name) > LONGEST_NAME or "#" in name or not name.isprintable() or name.startswith(OWN):
        raise ValueError(
            f"{name!r:.80} cannot be the name of a step: it takes 1 to {LONGEST_NAME} printable characters without "
            f"'#', and does not begin with {OWN!r}"
        )
    return name


def inside_another(name: str, outer: str) -> str:
    """Why a step cannot be called in the function of another one."""
    return (
        f"step {name!r} was called inside step {outer!r}, where it would not be kept by itself: call it from the body "
        "of the task, or call its function (`func` of the step)"
    )


def _path_of(step: Step[..., Any]) -> str:
    """The import path that leads to a step, or to its function. Raises NoPath."""
    try:
        return path_of(step)
    except NoPath:
        return path_of(step.func)


def _checked_engine(engine: object, name: str, *, on_loop: bool) -> EngineName:
    engine, fits = plain_text(engine, "the engine of a step"), _OF_ASYNC if on_loop else _OF_PLAIN
    if engine not in fits:
        what = "an async function" if on_loop else "a plain function"
        raise ValueError(f"step {name!r} is {what}, which runs on {' or '.join(fits)}, and not on {engine!r:.80}")
    return cast("EngineName", engine)


def _checked_capabilities(given: object) -> tuple[str, ...]:
    if is_a(given, str) or not is_a(given, Iterable):
        raise TypeError(f"capabilities is a set of names, not {kind_name(given)}")
    names = [plain_text(one, "a capability of a step") for one in islice(cast("Iterable[object]", given), MOST_NAMES)]
    if not all(one.strip() for one in names):
        raise ValueError("a capability of a step is empty")
    return tuple(sorted(set(names)))


def checked_retry(retry: object, about: str) -> Retry:
    """The checked retry of a step. about: the owner of the retry, for the error.

    Raises TypeError for an object that is no Retry, and SpecificationError, a ValueError, with all findings about it.
    """
    if not isinstance(retry, Retry):
        raise TypeError(f"the retry of {about} is a Retry, not {shown(retry, 60)}")
    if retry is not ONCE:
        from ...actors.spec.validate import SpecificationError, retry_findings  # noqa: PLC0415 - not for plain steps

        if found := retry_findings(retry):
            raise SpecificationError(found, about)
    return retry


def checked_tool(tool: object, what: str) -> str:
    """The checked name of a tool. what: its owner, for the error. Raises TypeError; ValueError for an invalid name."""
    tool = plain_text(tool, what)
    if problem := name_problem(tool):
        raise ValueError(f"{what}: the name {tool!r:.80} {problem}")
    return tool


def checked_part(name: object, what: str, before: str) -> str:
    """The part of the name of a library's own step that a body gives. before: the part before it.

    Raises TypeError for a value that is no text, ValueError for an invalid name.
    """
    name, longest = plain_text(name, f"the name of {what}"), LONGEST_NAME - len(before)
    if not name or len(name) > longest or "#" in name or not name.isprintable():
        raise ValueError(
            f"{name!r:.80} cannot be the name of {what}: it takes 1 to {longest} printable characters without '#'"
        )
    return name
