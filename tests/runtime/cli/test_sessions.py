"""docs/sessions.md is true: its commands are run, and every line of their output is compared."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

from .conftest import CommandResult

Cli = Callable[..., CommandResult]
Program = Callable[..., "subprocess.Popen[str]"]
PAGE = Path(__file__).parents[3] / "docs" / "sessions.md"
_CHANGES = (
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", "MOMENT"),
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "MOMENT"),
    (r"(until|decided) MOMENT [^;)\s]+", r"\1 MOMENT ZONE"),
    (r"\b\d\d:\d\d:\d\d\b", "TIME"),
    (r"\b\d+(\.\d)? s\b", "SPAN"),
    (r"process \d+", "process N"),
    (r"^ *\d+  MOMENT", "N  MOMENT"),
    (r"\d+ transitions", "N transitions"),
    (r" {2,}", "  "),  # columns are as wide as what is in them
)


def blocks(kind: str) -> list[str]:
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)


def alike(text: str) -> list[str]:
    """The lines of a text, without the parts that differ between runs."""
    lines = [line.rstrip() for line in text.splitlines()]
    for pattern, word in _CHANGES:
        lines = [re.sub(pattern, word, line) for line in lines]
    return lines


def commands(block: str) -> list[tuple[list[str], str]]:
    """Each command of a block, as words, with its output."""
    parts = re.split(r"^\$ (.*)\n", block, flags=re.MULTILINE)[1:]
    return [(shlex.split(line), out) for line, out in zip(parts[::2], parts[1::2], strict=True)]


def test_the_recorded_session_is_what_happens(cli: Cli, folder: Path, program: Program) -> None:
    (specification,) = blocks("toml")
    (folder / "release.toml").write_text(specification)
    first, *others = blocks("terminal")
    ((begin, shown),) = commands(first)
    running = program(*begin[1:])
    assert running.stdout is not None
    seen = ""
    while not ("warm-up started" in seen and "deploy waits" in seen):
        line = running.stdout.readline()
        assert line, seen
        seen += line
    code = 0
    for block in others:
        for words, out in commands(block):
            if words == ["echo", "$?"]:
                assert out == f"{code}\n"
                continue
            assert words[0] == "callboard"
            if words[1] == "history":
                seen += running.communicate(timeout=600)[0]  # the page shows its end here
            result = cli(*words[1:])
            code = result.code
            assert alike(result.everything) == alike(out), words
    assert running.returncode == 0
    assert alike(seen) == alike(shown)
