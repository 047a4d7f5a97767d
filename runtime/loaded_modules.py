"""The modules that this program has imported, found without importing any.

Rules
-----
- While a module is being imported, in any thread, it is already in `sys.modules`, but without all of its names. Such a
  module counts as not imported.
- Nothing here imports a module.
"""

from __future__ import annotations

import sys
from typing import Any


def imported(name: str) -> Any:
    """The module of that name if its import has ended, else None. (The type of a module depends on its name.)"""
    module = sys.modules.get(name)
    # Python's own `import` makes the same check.
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module


def under_trio() -> bool:
    """Whether the present code runs on trio."""
    trio = imported("trio")
    return trio is not None and bool(trio.lowlevel.in_trio_run())
