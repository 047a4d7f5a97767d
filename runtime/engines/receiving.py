"""The request of a body that receives a message (`flow.py` runs it as a step)."""

from __future__ import annotations

from typing import Any, NamedTuple

from ...actors.spec.names import message_name
from ...actors.times import Duration, seconds

NO_DEFAULT: Any = ...
"""In place of a default that a body does not give."""


class Wanted(NamedTuple):
    """The message that a body receives. timeout: seconds (None: no limit). kind: the type that the value has to fit.

    default: what the body gets if none comes in time; `NO_DEFAULT`: ReceiveTimeout.
    """

    name: str
    timeout: float | None
    default: Any
    kind: Any

    @property
    def has_default(self) -> bool:
        """Whether the body has a value for the case that no message comes in time."""
        return self.default is not NO_DEFAULT


def wanted(name: object, timeout: Duration | None, default: Any, kind: Any) -> Wanted:
    """The checked arguments of a receive. Raises TypeError and ValueError."""
    if default is not NO_DEFAULT and timeout is None:
        raise ValueError("receive takes a default for the case that no message comes within `timeout`: give a timeout")
    return Wanted(message_name(name), None if timeout is None else seconds(timeout), default, kind)
