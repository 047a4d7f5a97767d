"""What guards read of the facts: known where they say it.

Rules
-----
- A guard says it by the type of its first parameter, where that is a Protocol: each name in it is a fact that it reads.
- Of every other guard nothing is known, and nothing is assumed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import get_type_hints

from ..machine import Machine
from ..rows import Guard, label


def facts_of(guard: Guard) -> Mapping[str, str]:
    """The facts that a guard says it reads, in the order of their declaration, each with what it means, if told."""
    try:
        first = guard.__code__.co_varnames[0]
        declared: object = get_type_hints(guard).get(first)
        kinds = declared.__mro__ if isinstance(declared, type) and _is_protocol(declared) else ()
        return {
            name: inspect.getdoc(vars(kind).get(name)) or "" if isinstance(vars(kind).get(name), property) else ""
            for kind in reversed(kinds)
            if _is_protocol(kind)
            for name in (*vars(kind), *getattr(kind, "__annotations__", ()))
            if not name.startswith("_")
        }
    except (AttributeError, IndexError, NameError, TypeError):  # it is no plain function, or names what is not there
        return {}


def readers(machine: Machine) -> dict[str, list[str]]:
    """By the facts that the guards of a machine say they read: those guards, in words."""
    found: dict[str, list[str]] = {}
    for guard in dict.fromkeys(row.guard for row in machine.transitions if row.guard is not None):
        for fact in facts_of(guard):
            found.setdefault(fact, []).append(label(guard))
    return found


def _is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))
