"""The requests of a body that receives or sends a message (`flow.py` runs them as steps)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, get_args

import msgspec
import msgspec.inspect

from ...actors.spec.names import message_name
from ...actors.times import Duration, seconds
from ...actors.user_code import message_of, plain_text

if TYPE_CHECKING:
    from .context import TaskContext

NO_DEFAULT: Any = ...
"""The default of a body that gives none."""


class Wanted(msgspec.Struct, frozen=True):
    """The message that a body receives. timeout: seconds (None: no limit). kind: the type that the value has to fit.

    default: the value that the body gets if no message comes in time; `NO_DEFAULT`: ReceiveTimeout is raised.
    """

    name: str
    timeout: float | None
    default: Any
    kind: Any

    @property
    def has_default(self) -> bool:
        """Whether the body has a value for the case that no message comes in time."""
        return self.default is not NO_DEFAULT


class ReceiveBody:
    """The body of a task that is nothing but a receive. timeout: as for `task.receive`."""

    def __init__(self, name: str, timeout: Duration | None) -> None:
        self._name = name
        self._timeout = timeout

    async def __call__(self, task: TaskContext) -> Any:
        """Return the value of the message. Raises ReceiveTimeout."""
        return await task.receive(self._name, timeout=self._timeout)


class Outgoing(msgspec.Struct, frozen=True, array_like=True):
    """A message that a body sends to a job, or to one of its tasks only. value: as JSON.

    request_id: the same in each replay of the step that sends it; "" until that step is persisted.
    """

    job: str
    task: str | None
    name: str
    value: msgspec.Raw
    request_id: str = ""


def addressed(job_id: object, task: object, name: object) -> tuple[str, str | None, str]:
    """The checked address and name of a message that a body sends. Raises TypeError and ValueError."""
    to = None if task is None else plain_text(task, "the name of a task")
    return plain_text(job_id, "a job's id"), to, message_name(name)


def wanted(name: object, timeout: Duration | None, default: Any, kind: Any) -> Wanted:
    """The checked arguments of a receive. Raises TypeError and ValueError."""
    if default is not NO_DEFAULT and timeout is None:
        raise ValueError("receive takes a default for the case that no message comes within `timeout`: give a timeout")
    if type(default) is float and not math.isfinite(default):
        raise ValueError(
            f"receive takes no default {default!r}: JSON has no such number. Give None, or an object of yours"
        )
    if kind is not None:
        _check_type(kind)
    return Wanted(message_name(name), None if timeout is None else seconds(timeout), default, kind)


def _check_type(kind: Any) -> None:
    """Refuse a type to which no value can be converted, before a message is received. Raises TypeError."""
    try:
        msgspec.json.Decoder(kind)
        custom = [one for one in (kind, *get_args(kind)) if isinstance(one, type) and _is_custom(one)]
    except Exception as error:
        raise TypeError(f"receive takes a type that msgspec decodes, not {kind!r:.80}: {message_of(error)}") from error
    if custom:
        raise TypeError(
            f"receive takes a type that msgspec decodes (a Struct, a dataclass, a TypedDict, dict[str, int]), and "
            f"{custom[0].__name__} is another class: receive the value without a type, and make the object from it"
        )


def _is_custom(kind: type) -> bool:
    return isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType)
