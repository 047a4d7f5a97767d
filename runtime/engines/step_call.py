"""The function of a step that runs on a worker: how it is called there, and how its end is reported.

Rules
- On a worker with a process of its own, or on Ray, `run` or `run_on_loop` is the function of the call: they find the
  step's function by its import path. In the runtime's process, `call` calls it directly.
- The report is plain JSON: the result, or the facts of the error, from which the body's process makes it again.
- Only Exceptions are reported: cancellations and exits end the call as they end a body.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import msgspec

from ..calling import ErrorInfo
from ..functions.import_paths import follow, on_another_machine
from ..values import checked
from . import step_errors
from .process.main_module import object_of
from .steps import Step, inside

if TYPE_CHECKING:
    from ..text.secrets import Mask
    from .context import TaskContext

Report: TypeAlias = dict[str, Any]
RUN, RUN_ON_LOOP = f"{__name__}:run", f"{__name__}:run_on_loop"


class StepOrder(msgspec.Struct, frozen=True):
    """What another process needs to call the function of a step. path: of the function. call: its arguments, by
    position and by name. text: as `ProcessCall.text`, for the function's module.
    """

    path: str
    label: str
    call: tuple[list[Any], dict[str, Any]]
    text: str | None = None


class StepFailure(msgspec.Struct, frozen=True):
    """How a step has failed on a worker. path: of the error's class. arguments: as `StepRecord.raw_arguments`, decoded;
    None if the error cannot be made again.
    """

    error: ErrorInfo
    path: str
    arguments: Any = None


def run(context: TaskContext) -> Report:
    """Call the plain function of a step, in the process of a worker. `context.args` is a `StepOrder`."""
    order = msgspec.convert(context.args, StepOrder)
    return call(_found(order), order.label, None)


async def run_on_loop(context: TaskContext) -> Report:
    """Call the async function of a step, on the loop of a worker."""
    order = msgspec.convert(context.args, StepOrder)
    return await call_on_loop(_found(order), order.label, None)


def order_of(path: str, label: str, call: msgspec.Raw, text: str | None) -> dict[str, Any]:
    """A `StepOrder` as the arguments of a context. call: as JSON."""
    return {"path": path, "label": label, "call": msgspec.json.decode(call), "text": text}


def local(order: dict[str, Any]) -> Callable[[], Any]:
    """The function of a step in the runtime's process, for a body in another one. Raises BodyNotFound."""
    what = msgspec.convert(order, StepOrder)
    return _bound(follow(what.path), what)


def call(func: Callable[[], Any], label: str, mask: Mask | None) -> Report:
    """Call the plain function of a step, and report its end. label: of the step; no other step can be called in it."""
    token = inside.set(label)
    try:
        return _returned(func(), label)
    except Exception as error:
        return _failed(error, mask)
    finally:
        inside.reset(token)


async def call_on_loop(func: Callable[[], Awaitable[Any]], label: str, mask: Mask | None) -> Report:
    """`call` for an async function."""
    token = inside.set(label)
    try:
        return _returned(await func(), label)
    except Exception as error:
        return _failed(error, mask)
    finally:
        inside.reset(token)


def failure_of(report: Report) -> StepFailure | None:
    """The failure in a report; None if the step has returned: its result is `report["value"]`."""
    return msgspec.convert(report["failure"], StepFailure) if "failure" in report else None


def _found(order: StepOrder) -> Callable[[], Any]:
    return _bound(object_of(on_another_machine(order.path, order.text)), order)


def _bound(found: object, order: StepOrder) -> Callable[[], Any]:
    """The function of a step with its arguments. found: by its path, where the step itself may be."""
    func = cast("Callable[..., Any]", found.func if isinstance(found, Step) else found)
    args, kwargs = order.call
    return partial(func, *args, **kwargs)


def _returned(value: object, label: str) -> Report:
    return {"value": checked(value, f"the result of step {label!r}")}


def _failed(error: Exception, mask: Mask | None) -> Report:
    info, arguments = step_errors.recorded(error, mask)
    made = None if arguments is None else msgspec.json.decode(arguments)
    return {"failure": msgspec.to_builtins(StepFailure(info, step_errors.path_of(error), made))}
