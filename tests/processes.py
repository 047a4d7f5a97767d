"""What tests ask of the machine's processes."""

from __future__ import annotations

from pathlib import Path


def runs(pid: int) -> bool:
    """Whether a process runs: one that is dead but not yet reaped by its parent does not."""
    return _state(pid) not in "ZX"


def stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal."""
    return _state(pid) == "T"


def _state(pid: int) -> str:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "X"
    return text.rpartition(")")[2].split()[0]
