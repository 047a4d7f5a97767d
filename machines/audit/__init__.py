"""Logs of transitions, held against the machines and against what must always hold.

The line of a log, its reader, the auditor and the invariants live here. Nothing here reads a journal. `audit_lines` is
imported when it is first asked for: every program writes lines of logs, and few read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .audit import audit_lines
else:

    def __getattr__(name: str) -> object:
        if name != "audit_lines":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .audit import audit_lines  # noqa: PLC0415 - it needs every machine there is

        globals()[name] = audit_lines
        return audit_lines


__all__ = ["audit_lines"]
