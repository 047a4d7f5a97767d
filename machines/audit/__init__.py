"""Logs of transitions, and their audit against the machines and the invariants.

The type of a log's line, its reader, the auditor and the invariants live here. Nothing here reads a journal.
`audit_lines` is imported on first use: every program writes logs, and few programs read them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .audit import audit_lines
else:

    def __getattr__(name: str) -> object:
        if name != "audit_lines":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from .audit import audit_lines  # noqa: PLC0415 - it imports all machines

        globals()[name] = audit_lines
        return audit_lines


__all__ = ["audit_lines"]
