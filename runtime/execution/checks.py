"""Acceptance tests that are not simply a command or a function: files that exist or were written, modules that import.

Rules
-----
- Each sees what is there, and says in words what is missing.
- A file counts as written when its time of modification is not before the attempt began. (File systems take their times
  from a clock that may be a tick behind: `TICK`.)
- Modules are imported in a process of their own, from the folder of the task. A JavaScript module needs Node.js: where
  there is none, that is what is told.
- The last line of what these processes say is why the module does not import, in one line: a command's last line is
  what its error names. What Node.js and Python write by themselves may end with a bracket, a note or a link.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...actors.kernel.transaction import folder_of
from ...actors.records.entities import WorkstreamRecord
from ...actors.records.task import TaskRecord

if TYPE_CHECKING:
    from ...actors.spec.model import Check, Task, Workstream

TICK = 0.02
"""Seconds that a file's time may be behind the clock."""

# Each names the error last, in no more characters than are kept of a last line.
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
    """What is wrong, as far as a look tells: "" where nothing is, None where something has to be run."""
    if check.imports_js is not None:
        found = shutil.which("node")
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
    """The command that imports a module; None for a check that does not."""
    if check.imports is not None:
        return [sys.executable, "-c", _PYTHON, check.imports]
    if check.imports_js is not None:
        return [shutil.which("node") or "node", "-e", _NODE, check.imports_js]
    return None


def title_of_import(check: Check) -> str:
    """What errors call the command of `importing`: as it was asked for, and not by the program that does it."""
    return f"imports {check.imports}" if check.imports is not None else f"imports_js {check.imports_js}"


def _began(record: TaskRecord | WorkstreamRecord) -> float:
    """No later than when the present attempt began (UTC epoch seconds)."""
    started = record.started_at or 0.0
    return started if isinstance(record, WorkstreamRecord) else max(started, record.queued_at or 0.0)
