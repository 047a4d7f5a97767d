"""Whether a user's actor can be called as the dispatcher calls it: told when it is spawned, not with every message.

Rules
-----
- The methods are looked at as the actor has them: functions of any kind, partials, callable objects, what a decorator
  made of them. A decorator's own signature counts, and not that of what it wraps.
- What does not tell its signature is let pass: a call will tell.
- A method that yields is refused: calling it runs nothing of it, and the answer would be a generator.
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
    """Raise TypeError, with the right signatures, where a method of an actor cannot be called."""
    findings: list[str] = []
    for name, (taken, why) in _METHODS.items():
        method = _method(actor, name)
        found = _signature(method)
        if found is not None and not _takes(found, len(taken)):
            right = f"def {name}(self, {', '.join(taken)})"
            has = f"{name}({', '.join(('self', *found.parameters))})"
            findings.append(f"its `{has}` is called {why}: write `{right}`, or `async {right}`")
        elif isgeneratorfunction(method) or isasyncgenfunction(method):
            findings.append(f"its `{name}` yields, so that calling it runs nothing of it: return the answer instead")
        elif method is not None and not callable(method):
            findings.append(f"its `{name}` is {shown(method)}, which cannot be called")
    if findings:
        raise TypeError(f"{kind_name(actor)} is no actor: {'; '.join(findings)}")


def _method(actor: Actor, name: str) -> Any:
    """What the actor has by that name; None where asking for it raises."""
    try:
        return called(getattr, actor, name)
    except Exception:  # a class of its own, whose code this is
        return None


def _signature(method: Any) -> Signature | None:
    """That of a method as it is called, without `self`; None where it does not tell."""
    try:
        return called(signature, method, follow_wrapped=False)
    except Exception:  # a builtin, or what raises
        return None


def _takes(found: Signature, arguments: int) -> bool:
    try:
        called(found.bind, *[None] * arguments)
    except Exception:
        return False
    return True
