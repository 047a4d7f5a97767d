"""Which facts a guard reads, if the guard declares them.

Rules
-----
- A guard declares them by the type of its first parameter, if that is a Protocol: each name in it is a fact.
- About any other guard nothing is known, and nothing is assumed.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import get_type_hints

from ..machine import Machine
from ..rows import Guard, label


def facts_of(guard: Guard) -> Mapping[str, str]:
    """The facts that a guard declares, in order of declaration, each with its meaning, if documented."""
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
    except (AttributeError, IndexError, NameError, TypeError):  # no plain function, or a type that does not exist
        return {}


def readers(machine: Machine) -> dict[str, list[str]]:
    """By each fact that guards of a machine declare: the names of those guards."""
    found: dict[str, list[str]] = {}
    for guard in dict.fromkeys(row.guard for row in machine.transitions if row.guard is not None):
        for fact in facts_of(guard):
            found.setdefault(fact, []).append(label(guard))
    return found


def _is_protocol(kind: type) -> bool:
    return bool(getattr(kind, "_is_protocol", False))
