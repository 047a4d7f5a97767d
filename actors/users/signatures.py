"""Whether the dispatcher can call a user's actor: checked when it is spawned, not with every message.

Rules
-----
- The check reads the methods as the actor has them: functions of any kind, partials, callable objects, results of
  decorators. The signature of a decorated function counts, and not that of the function inside.
- A method without a readable signature passes: a call will show.
- A method that yields is refused: calling it would run nothing, and the answer would be a generator.
"""

from __future__ import annotations

from inspect import Signature, isasyncgenfunction, isgeneratorfunction, signature
from typing import Any

from ..user_code import called, kind_name, shown
from .actor import Actor

__all__ = ["check_methods"]

_METHODS = {
    "receive": (("message", "ctx"), "once for each message, with it and the actor's Context"),
    "started": (("ctx",), "before the first message, with the actor's Context"),
    "stopped": (("ctx",), "when the actor ends, with its Context"),
}


def check_methods(actor: Actor) -> None:
    """Raise TypeError, with the right signatures, if a method of an actor cannot be called."""
    findings: list[str] = []
    for name, (taken, why) in _METHODS.items():
        method = _method(actor, name)
        found = _signature(method)
        if found is not None and not _takes(found, len(taken)):
            right = f"def {name}(self, {', '.join(taken)})"
            has = f"{name}({', '.join(('self', *found.parameters))})"
            findings.append(f"its `{has}` is called {why}: write `{right}`, or `async {right}`")
        elif isgeneratorfunction(method) or isasyncgenfunction(method):
            findings.append(f"its `{name}` yields, so a call would run nothing: return the answer instead")
        elif method is not None and not callable(method):
            findings.append(f"its `{name}` is {shown(method)}, which cannot be called")
    if findings:
        raise TypeError(f"{kind_name(actor)} is no actor: {'; '.join(findings)}")


def _method(actor: Actor, name: str) -> Any:
    """The actor's attribute of that name; None if reading it raises."""
    try:
        return called(getattr, actor, name)
    except Exception:  # an attribute of the class may run its code
        return None


def _signature(method: Any) -> Signature | None:
    """The signature of a method as it is called, without `self`; None if it cannot be read."""
    try:
        return called(signature, method, follow_wrapped=False)
    except Exception:  # a builtin, or a signature that raises
        return None


def _takes(found: Signature, arguments: int) -> bool:
    try:
        called(found.bind, *[None] * arguments)
    except Exception:
        return False
    return True
