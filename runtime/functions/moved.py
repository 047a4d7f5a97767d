"""The present modules of the library's machines and guards, by the older names that journals hold.

Rules
-----
- A journal names a machine by the first module, by name, that holds it, and a guard by the module that defines it. A
  journal is not rewritten, so these older names work as long as journals exist.
- Modules whose names cannot be in a journal are not listed here: docs/moved.md has them all.
"""

from __future__ import annotations

from typing import Final

_ACTORS = {
    "approval": "tasks.approval", "attempts": "tasks.attempts", "breaker": "workers.breaker", "job": "jobs.job",
    "stopping": "jobs.workstream", "submissions": "jobs.submissions", "worker": "workers.worker",
}  # fmt: skip
_RUNTIME = {"handles": "handles.jobs", "web.allowed": "web.read.allowed", "web.jobs": "web.read.jobs"}
_OWN = {name: f"builtin.{name}" for name in ("approval", "breaker", "job", "task", "worker", "workstream")}

MOVED: Final = {
    f"callboard.{layer}.{was}": f"callboard.{layer}.{now}"
    for layer, moves in (("machines", _OWN | {"own": "builtin.table"}), ("actors", _ACTORS), ("runtime", _RUNTIME))
    for was, now in moves.items()
}
"""Each module's older name -> its present one."""
