"""Programs that tests start: none outlives its test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import AnyStr


@contextmanager
def killed_after(process: subprocess.Popen[AnyStr]) -> Iterator[subprocess.Popen[AnyStr]]:
    """Kill a program at the end of the block, also where an assertion has failed in it.

    `with subprocess.Popen(...)` only waits for the end of the program: a test that fails would hang.
    """
    with process:
        try:
            yield process
        finally:
            process.kill()
