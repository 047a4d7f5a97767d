"""What tests ask of the machine's processes."""

from __future__ import annotations

from pathlib import Path


def runs(pid: int) -> bool:
    """Whether a process runs: one that is dead but not yet reaped by its parent does not."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return text.rpartition(")")[2].split()[0] not in "ZX"
