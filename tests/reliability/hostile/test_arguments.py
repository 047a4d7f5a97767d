"""Hostile arguments of every command: each gives a clear answer soon, and never a traceback."""

from __future__ import annotations

import asyncio
import contextlib
import io
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from tests.reliability.hostile.budget import tries

from callboard import MachineActor, Runtime, Task, Workstream
from callboard.machines.lifecycles.execution import EXECUTION
from callboard.runtime.cli import _app
from callboard.runtime.cli.app import app
from callboard.runtime.cli.command_errors import run_command

pytestmark = pytest.mark.laboratory
LIMIT = 60
"""Seconds that one command may take, whatever it is asked; a run of a real file included."""
CODES = {0, 1, 2, 4, 130}
"""All but 3: an error in Callboard itself."""
NASTY = (
    "", " ", "-", "--", "---", "-rf", "--help", "--no-such", "\x1b[2J", "\x07", "\n", "x\ny", "\udcff", "a\udc80b",
    "\u202etxt", "\ufeff", "é", "e\u0301", "nan", "inf", "-inf", "1e999", "-1", "0", "-0.0", "9" * 400, "1e18", "0x10",
    "72h", "99999999999999999999d", "-5m", "1h1h", "1_000", "a" * 5_000, "a:b", "a:b:c", "os:system", "json:dumps",
    ":", "::", "no_such_module:x", "{}", "[]", '{"a": 1}', '{"a": NaN}', "[" * 2_000, "null", "'", '"', "%s", "{0}",
    "$(id)", "${X}", "*", "CON", "a/b", "a//b", "x/", "\\", "@x", "true", "file:", "callboard.db-wal", ".",
)  # fmt: skip
GOOD = (
    "done", "done/a", "done@1/a", "gate", "ENQUEUE", "spec.json", "log.jsonl", "callboard.db", "task", "worker",
    "press", "loop", "a", "1s", "5", "mermaid", "json",
)  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(NASTY),
    st.sampled_from(GOOD),
    st.text(st.characters(exclude_characters="\0/~."), max_size=12),
    st.integers().map(str),
    st.floats().map(repr),
)


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[tuple[str, bool]]]]:
    """Every command, with its options: the name of each, and whether it takes no value."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            options = [(one.opts[0], bool(one.is_flag)) for one in command.params if one.param_type_name == "option"]
            yield (*path, name), options


ENDLESS = ("serve",)  # once it is well begun
COMMANDS = [one for one in commands(typer.main.get_command(app)) if one[0] != ENDLESS]


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """The arguments of one command."""
    path, options = draw(st.sampled_from(COMMANDS))
    words = draw(st.lists(st.one_of(st.sampled_from(GOOD), VALUES), max_size=3))
    for name, flag in draw(st.lists(st.sampled_from(options), max_size=4)) if options else ():
        value = draw(st.sampled_from(NASTY + GOOD) if name == "--check" else VALUES)  # which a shell is given
        words += [name] if flag or draw(st.integers(0, 9)) == 0 else [name, value]
    return [*path, *words]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a journal, its log, and a specification."""
    folder = tmp_path_factory.mktemp("filled")

    async def fill() -> None:
        async with Runtime(folder / "callboard.db", jsonl=folder / "log.jsonl") as runtime:
            spec = Workstream("flow", tasks=[Task("a", command=["true"], tool="press")])
            await (await runtime.submit(spec, id="done")).wait()
            runtime.spawn(MachineActor(EXECUTION), name="gate")

    asyncio.run(fill())
    (folder / "spec.json").write_text('{"name": "flow", "tasks": [{"name": "a", "command": ["true"]}]}')
    return folder


def told(args: list[str]) -> tuple[int, str]:
    """Return the answer of a command, on streams as strict as those of a terminal."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace")
    patch = pytest.MonkeyPatch()
    with patch.context() as there, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        there.setattr(sys, "argv", ["callboard", *args])
        there.setattr(sys, "path", list(sys.path))
        code = run_command(_app)
        out.flush()
        err.flush()
    return code, b"".join(stream.buffer.getvalue() for stream in (out, err)).decode()  # type: ignore[attr-defined]


NO_TEXT = "\udcff"
"""An argument with a byte that is not UTF-8, as Python is handed it."""


@pytest.mark.parametrize(
    "args",
    [
        ["pause", NO_TEXT], ["fire", "gate", NO_TEXT], ["approve", "done", "--reason", NO_TEXT],
        ["breaker", "list", "[" * 2_000, NO_TEXT], ["run", "spec.json", "--id", NO_TEXT], ["status", NO_TEXT],
        ["init", NO_TEXT + ".toml"], ["check", "--journal", NO_TEXT], ["audit", NO_TEXT],
    ],
)  # fmt: skip
def test_an_argument_that_is_no_text_is_refused_or_taken_as_a_name(
    args: list[str], filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(filled, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    code, text = told(args)
    assert code in {0, 1, 2}, text
    assert "Traceback" not in text


@given(args=lines())
@tries(60)
def test_whatever_a_command_is_given_it_answers_soon_and_clearly(
    args: list[str], filled: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("here")
    shutil.copytree(filled, folder, dirs_exist_ok=True)

    def too_long(*_: object) -> None:
        raise TimeoutError(f"{args} took longer than {LIMIT} s")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.setitimer(signal.ITIMER_REAL, LIMIT)
    try:
        with contextlib.chdir(folder):
            code, text = told(args)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        shutil.rmtree(folder)
    assert code in CODES, text
    assert "Traceback" not in text
    assert "\x1b[2J" not in text
    if code == 2:
        assert text.strip()
