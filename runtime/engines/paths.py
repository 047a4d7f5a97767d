"""Functions of a worker process, by the names that its runtime and a restart find them by: import paths.

What is a name or a path already is taken as it is, and checked beside the runtime: what the application registered is
known there only. The program's own module has another name in a worker process than the one it is found by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..bodies import Bodies
from .main_module import NAME

_HERE = f"{NAME}:"


class Paths(Bodies):
    """The functions of a worker process."""

    def name_of(self, func: Callable[..., Any], *, durable: bool) -> str:
        """The import path of a function. Raises NoPath where there is none."""
        path = super().name_of(func, durable=durable)
        return f"__main__:{path.removeprefix(_HERE)}" if path.startswith(_HERE) else path

    @property
    def finder(self) -> None:
        """Nobody: they are checked beside the runtime."""
        return None
