"""The shell that runs a command which is one text.

Rules
-----
- It is bash with `pipefail` where there is one: a pipeline fails when any part of it does, and not only its last. So
  `pytest | tee log` fails as `pytest` does.
- Where there is no bash it is `/bin/sh`, which may not know that; whoever runs a pipeline by it is told once.
"""

from __future__ import annotations

import shutil
from functools import cache

PLAIN = "/bin/sh"


@cache
def bash() -> str | None:
    """The path of bash; None where there is none. It is looked for once."""
    return shutil.which("bash")


def shell_line(text: str) -> list[str]:
    """The arguments that run a text in a shell."""
    found = bash()
    return [PLAIN, "-c", text] if found is None else [found, "-o", "pipefail", "-c", text]


def hides_failures(text: str) -> bool:
    """Whether the text may be a pipeline of which only the last part counts."""
    return bash() is None and "|" in text.replace("||", "")
