"""Whether a user's actor can be called as the dispatcher calls it: told when it is spawned, not with every message.

Rules
-----
- The methods are looked at as the actor has them: functions of any kind, partials, callable objects, what a decorator
  made of them. A decorator's own signature counts, and not that of what it wraps.
- What does not tell its signature is let pass: a call will tell.
"""

from __future__ import annotations

from inspect import Signature, signature
from typing import Any

from .actor import Actor
from .theirs import called, kind_name

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
        found = _signature(actor, name)
        if found is not None and not _takes(found, len(taken)):
            right = f"def {name}(self, {', '.join(taken)})"
            has = f"{name}({', '.join(('self', *found.parameters))})"
            findings.append(f"its `{has}` is called {why}: write `{right}`, or `async {right}`")
    if findings:
        raise TypeError(f"{kind_name(actor)} is no actor: {'; '.join(findings)}")


def _signature(actor: Actor, name: str) -> Signature | None:
    """That of a method as it is called, without `self`; None where it does not tell."""
    try:
        method: Any = called(getattr, actor, name)
        return called(signature, method, follow_wrapped=False)
    except Exception:  # a builtin, or a class of its own that raises
        return None


def _takes(found: Signature, arguments: int) -> bool:
    try:
        called(found.bind, *[None] * arguments)
    except Exception:
        return False
    return True
