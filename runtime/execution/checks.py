"""Acceptance tests of files and modules: a file exists or was written, a module imports.

Rules
-----
- Each test looks at the present state, and says in words what is missing.
- A file counts as written if its time of modification is not before the attempt began. (File systems take their times
  from a clock that may be a tick behind: `TICK`.)
- Modules are imported in a process of their own, from the folder of the task. A JavaScript module needs Node.js: if it
  is not installed, the test fails and says so.
- The last line of these processes' output says in one line why the import failed: the error of a command quotes its
  last line. The last line that Node.js and Python write by themselves may be a bracket, a note or a link.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...actors.kernel.transaction import folder_of
from ...actors.records.entities import WorkstreamRecord
from ...actors.records.task import TaskRecord
from ..engines.command.shell import which

if TYPE_CHECKING:
    from ...actors.spec.model import Check, Task, Workstream

TICK = 0.02
"""Seconds that a file's time may be behind the clock."""

# Each writes the error last, in no more characters than are kept of a last line.
_PYTHON = (
    "import importlib, sys; shown = sys.excepthook; sys.excepthook = lambda kind, error, trace: "
    "(shown(kind, error, trace), "
    "print(' '.join(f'cannot import {sys.argv[1]}: {kind.__name__}: {error}'.split())[:190], file=sys.stderr)); "
    "importlib.import_module(sys.argv[1])"
)
_NODE = (
    "import(process.argv[1]).then(() => process.exit(0), failed); process.on('uncaughtException', failed); "
    "process.on('beforeExit', () => failed(new Error('its top-level await never ends'))); "
    "function failed(error) { let text = 'it threw something that has no text'; "
    "try { console.error(error); text = String(error); } catch {} "
    r"text = `cannot import ${process.argv[1]}: ${text}`.replace(/\s+/g, ' ').trim(); "
    "console.error(text.slice(0, 190)); process.exit(1); }"
)


def looked_at(check: Check, stream: Workstream, task: Task | None, record: TaskRecord | WorkstreamRecord) -> str | None:
    """Test a file at once. Returns the problem, "" if there is none, None if a process must run the test."""
    if check.imports_js is not None:
        found = which("node")
        return None if found else f"cannot import {check.imports_js!r}: there is no `node` on PATH; install Node.js"
    named = check.file if check.changed is None else check.changed
    if named is None:
        return None
    path = Path(folder_of(stream, task), named)
    if not path.exists():
        return f"the file {named!r} does not exist"
    if check.changed is not None and path.stat().st_mtime < _began(record) - TICK:
        return f"the file {named!r} was not written"
    return ""


def importing(check: Check) -> list[str] | None:
    """Return the command that imports a module; None if the check imports nothing."""
    if check.imports is not None:
        return [sys.executable, "-c", _PYTHON, check.imports]
    if check.imports_js is not None:
        return [which("node") or "node", "-e", _NODE, check.imports_js]
    return None


def title_of_import(check: Check) -> str:
    """Return the import command's name for errors, in the words of the check."""
    return f"imports {check.imports}" if check.imports is not None else f"imports_js {check.imports_js}"


def _began(record: TaskRecord | WorkstreamRecord) -> float:
    """A time at or before the beginning of the present attempt (UTC epoch seconds)."""
    started = record.started_at or 0.0
    return started if isinstance(record, WorkstreamRecord) else max(started, record.queued_at or 0.0)
