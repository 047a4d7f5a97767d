"""The shell for a command that is given as one text.

Rules
-----
- It is bash with `pipefail` if bash exists: a pipeline fails if any part of it fails, not only the last. So
  `pytest | tee log` fails as `pytest` does.
- Without bash it is `/bin/sh`, which may not have `pipefail`; a user who runs a pipeline with it is warned once.
"""

from __future__ import annotations

from functools import cache

PLAIN = "/bin/sh"


@cache
def bash() -> str | None:
    """The path of bash; None if there is none. Searched once."""
    import shutil  # noqa: PLC0415 - slow, and only for a command

    return shutil.which("bash")


def shell_line(text: str) -> list[str]:
    """The arguments that run a text in a shell."""
    found = bash()
    return [PLAIN, "-c", text] if found is None else [found, "-o", "pipefail", "-c", text]


def hides_failures(text: str) -> bool:
    """Whether the text may be a pipeline in which only the last part's failure counts."""
    return bash() is None and "|" in text.replace("||", "")
