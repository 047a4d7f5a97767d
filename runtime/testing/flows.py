"""The flows of a simulation: the real ones, whose steps follow scripts where a test has given some.

Rules
-----
- A script is found by the step's label ("ask_model#3"), then by its name ("ask_model").
- Only the function of the step is replaced. Whatever keeps, replays, retries and times it is the real thing.
- Each call of the function takes the next outcome of its script, per task; a replayed step calls nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from ..dispatch.threads import ThreadLimit
from ..engines.steps import BoundStep, bound_of, inside
from .scripts import Fails, Succeeds, drawn

if TYPE_CHECKING:
    from random import Random

    from ...actors.messages.errors import FlowChanged
    from ..engines.connection import Connection
    from ..engines.flow_port import BodyLimits
    from ..engines.receiving import Wanted
    from ..engines.steps import Flow, FlowSource, GivenUpWaits, Step
    from ..text.secrets import Mask
    from .engine import EngineWorld
    from .scripts import Script

R = TypeVar("R")


class ScriptedFlows:
    """The source of one body's flow. owner: the id of its task."""

    def __init__(self, source: FlowSource, world: EngineWorld, owner: str) -> None:
        self._source = source
        self._world = world
        self._scripts = world.scripts
        self._owner = owner

    def of(self, token: int, mask: Mask | None, connection: Connection | None) -> Flow:
        """The flow of the attempt under that token. Raises AttemptOver if the attempt has ended."""
        flow = self._source.of(token, mask, connection)
        return _ScriptedFlow(flow, self._scripted) if self._scripts.of_steps else flow

    def waits_of(
        self, token: int, mask: Mask | None, connection: Connection | None, *, new: bool
    ) -> GivenUpWaits | None:
        """The flow of that attempt, for waits that are no steps; see `FlowSource`."""
        return self._source.waits_of(token, mask, connection, new=new)

    @property
    def limits(self) -> BodyLimits:
        """Finds the scopes and time limits of the body around a call."""
        return self._source.limits

    def changed(self, token: int) -> FlowChanged | None:
        """The error of a call of that attempt's body that the kept steps contradict; None if there was none."""
        return self._source.changed(token)

    def _scripted(self, step: Step[..., Any]) -> Step[..., Any]:
        """The step, with a function that looks for its script."""
        if not self._scripts.has_step(step.name):
            return step
        return step.instead(partial(self._call, step))

    async def _call(self, step: Step[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        script = self._scripts.find_step(inside.get() or step.name)
        if script is not None and script.run is None:
            return await self._follow(script)
        if script is None and not step.on_loop:
            return await ThreadLimit(1).run(partial(step.func, *args, **kwargs), abandon=True)
        func: Callable[..., Any] = step.func if script is None or script.run is None else script.run
        value = func(*args, **kwargs)
        return await value if isawaitable(value) else value

    async def _follow(self, script: Script) -> Any:
        plan = script.next(self._owner)
        takes = drawn(script.takes if plan.takes is None else plan.takes, self._world.random)
        if takes:
            over = anyio.Event()
            end = self._world.later(takes, "step ends", over.set)
            try:
                await over.wait()
            finally:
                end.cancel()
        match plan:
            case Fails(error=error):
                raise RuntimeError(error) if isinstance(error, str) else error
            case Succeeds(value=value):
                return value
            case _:
                await anyio.sleep_forever()
                return None


class _ScriptedFlow:
    """A flow whose steps are replaced before they are called."""

    def __init__(self, flow: Flow, scripted: Callable[[Step[..., Any]], Step[..., Any]]) -> None:
        self._flow = flow
        self._scripted = scripted

    def call(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coroutine[Any, Any, Any]:
        return self._flow.call(self._scripted(step), args, kwargs)

    def call_dated(
        self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, tuple[Any, float]]:
        return self._flow.call_dated(self._scripted(step), args, kwargs)

    def call_blocking(self, step: Step[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._flow.call_blocking(step, args, kwargs)

    async def gather(self, bound: Sequence[BoundStep[Any]], most: int | None) -> list[Any]:
        items = [bound_of(item) for item in bound]
        replaced: list[BoundStep[Any]] = [
            BoundStep(self._scripted(item.step), item.args_given, item.keywords_given) for item in items
        ]
        return await self._flow.gather(replaced, most)

    def gather_blocking(self, bound: Sequence[BoundStep[Any]], most: int | None) -> list[Any]:
        return self._flow.gather_blocking(bound, most)

    def sleep(self, seconds: float) -> Coroutine[Any, Any, None]:
        return self._flow.sleep(seconds)

    def sleep_blocking(self, seconds: float) -> None:
        self._flow.sleep_blocking(seconds)

    def receive(self, wanted: Wanted) -> Coroutine[Any, Any, Any]:
        return self._flow.receive(wanted)

    def receive_blocking(self, wanted: Wanted) -> Any:
        return self._flow.receive_blocking(wanted)

    def send(self, job_id: str, name: str, value: object, task: str | None) -> Coroutine[Any, Any, None]:
        return self._flow.send(job_id, name, value, task)

    def send_blocking(self, job_id: str, name: str, value: object, task: str | None) -> None:
        self._flow.send_blocking(job_id, name, value, task)

    def publish(self, name: str, value: object) -> Coroutine[Any, Any, None]:
        return self._flow.publish(name, value)

    def publish_blocking(self, name: str, value: object) -> None:
        self._flow.publish_blocking(name, value)

    def fact(self, name: str, make: Callable[[], R], label: str = "") -> Coroutine[Any, Any, R]:
        return self._flow.fact(name, make, label)

    def fact_blocking(self, name: str, make: Callable[[], R], label: str = "") -> R:
        return self._flow.fact_blocking(name, make, label)

    def version(self, name: str, latest: int) -> Coroutine[Any, Any, int]:
        return self._flow.version(name, latest)

    def version_blocking(self, name: str, latest: int) -> int:
        return self._flow.version_blocking(name, latest)

    @property
    def random(self) -> Random:
        return self._flow.random

    @property
    def on_loop(self) -> bool:
        return self._flow.on_loop

    def now(self) -> float:
        return self._flow.now()
