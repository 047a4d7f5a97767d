"""The shell for a command that is given as one text.

Rules
-----
- It is bash with `pipefail` if bash exists: a pipeline fails if any part of it fails, not only the last. So
  `pytest | tee log` fails as `pytest` does.
- Without bash it is `/bin/sh`, which may not have `pipefail`; a user who runs a pipeline with it is warned once.
"""

from __future__ import annotations

import os
from functools import cache

PLAIN = "/bin/sh"


@cache
def bash() -> str | None:
    """The path of bash; None if there is none. Searched once."""
    return which("bash")


def which(name: str) -> str | None:
    """The path of a program; None if there is none. `shutil.which` without `shutil`, which is slow to import, and needs
    descriptors for it: they may be short when the first command starts.
    """
    paths = (os.path.join(folder, name) for folder in os.get_exec_path())  # noqa: PTH118 - a folder may be "", the present
    return next((path for path in paths if os.access(path, os.X_OK) and not os.path.isdir(path)), None)  # noqa: PTH112


def shell_line(text: str) -> list[str]:
    """The arguments that run a text in a shell."""
    found = bash()
    return [PLAIN, "-c", text] if found is None else [found, "-o", "pipefail", "-c", text]


def hides_failures(text: str) -> bool:
    """Whether the text may be a pipeline in which only the last part's failure counts."""
    return bash() is None and "|" in text.replace("||", "")
