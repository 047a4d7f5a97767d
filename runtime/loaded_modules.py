"""What the program around us has imported, asked without importing it.

Rules
-----
- A module stands in `sys.modules` while it is still being imported, in whatever thread, with half of its names. Such a
  one counts as not imported.
- Nothing here imports anything.
"""

from __future__ import annotations

import sys
from typing import Any


def imported(name: str) -> Any:
    """The module of that name if it has been imported to its end, else None. (A module has no one type.)"""
    module = sys.modules.get(name)
    # Python's own `import` asks the same of a module that it finds there.
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module


def under_trio() -> bool:
    """Whether the present code runs on trio."""
    trio = imported("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())
