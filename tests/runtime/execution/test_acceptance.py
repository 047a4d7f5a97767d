"""The acceptance tests that document 003 lists: files, imports (Python and JavaScript), tests, lint, scripts."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from callboard import Check, Retry, Runtime, Task, TaskContext, Workstream

pytestmark = pytest.mark.anyio
NODE = pytest.mark.skipif(shutil.which("node") is None, reason="there is no Node.js")
AT_ONCE = Retry(max_attempts=2, base_delay=0, max_delay=0)


def writes(task: TaskContext) -> None:
    """Write the file of the attempt, if it has one."""
    files = task.args.get("files", [])
    if task.attempt <= len(files):
        Path(files[task.attempt - 1]).write_text("new", encoding="utf-8")
    if task.attempt < task.args.get("fails_before", 0):
        raise ValueError("not yet")


async def outcome(folder: Path, task: Task, **more: object) -> tuple[str, str | None]:
    async with Runtime() as runtime:
        spec = Workstream("w", tasks=[task], cwd=str(folder), **more)  # type: ignore[arg-type]
        done = await (await runtime.submit(spec)).wait()
        return str(done.state), done.tasks["a"].last_error


def old(path: Path) -> Path:
    """A file that was there before."""
    path.write_text("old", encoding="utf-8")
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


async def test_a_file_must_have_been_written_by_the_attempt(tmp_path: Path) -> None:
    file = old(tmp_path / "out.txt")
    checks = [Check(changed="out.txt")]
    assert await outcome(tmp_path, Task("a", run=writes, args={"files": [str(file)]}, checks=checks)) == (
        "completed",
        None,
    )
    old(file)
    state, error = await outcome(tmp_path, Task("a", run=writes, checks=checks))
    assert (state, error) == ("failed", "the file 'out.txt' was not written")
    state, error = await outcome(tmp_path, Task("a", run=writes, checks=[Check(changed="none.txt")]))
    assert (state, error) == ("failed", "the file 'none.txt' does not exist")


async def test_what_an_attempt_before_has_written_does_not_count(tmp_path: Path) -> None:
    file = tmp_path / "out.txt"
    args = {"files": [str(file)], "fails_before": 2}

    def age(task: TaskContext) -> bool:  # an hour passes between the two attempts
        aged = file.stat().st_mtime - 3600
        os.utime(file, (aged, aged))
        return True

    async with Runtime() as runtime:
        runtime.task(age)
        checks = [Check(run=age), Check(changed="out.txt")]
        task = Task("a", run=writes, args=args, retry=AT_ONCE, checks=checks)
        done = await (await runtime.submit(Workstream("w", tasks=[task], cwd=str(tmp_path)))).wait()
    assert done.tasks["a"].last_error == "the file 'out.txt' was not written"


async def test_a_workstream_s_checks_count_from_its_first_task(tmp_path: Path) -> None:
    file = old(tmp_path / "out.txt")
    checks = [Check(changed="out.txt")]
    written = Task("a", run=writes, args={"files": [str(file)]})
    assert (await outcome(tmp_path, written, checks=checks))[0] == "completed"
    old(file)
    assert (await outcome(tmp_path, Task("a", run=writes), checks=checks))[0] == "failed"


@NODE
async def test_a_javascript_module_must_import_with_all_that_it_imports(tmp_path: Path) -> None:
    (tmp_path / "good.mjs").write_text("export const answer = 42; setInterval(() => {}, 1000);", encoding="utf-8")
    (tmp_path / "old.cjs").write_text("module.exports = 42", encoding="utf-8")
    (tmp_path / "bad.mjs").write_text('import "./missing.mjs"', encoding="utf-8")
    good = [Check(imports_js="./good.mjs"), Check(imports_js="./old.cjs"), Check(imports_js="fs")]
    assert (await outcome(tmp_path, Task("a", run=writes, checks=good)))[0] == "completed"
    state, error = await outcome(tmp_path, Task("a", run=writes, checks=[Check(imports_js="./bad.mjs")]))
    assert state == "failed"
    assert "missing.mjs" in (error or "")


REASONS = {
    "absent": (None, "Error [ERR_MODULE_NOT_FOUND]: Cannot find module "),
    "syntax": ("let let = 1", "SyntaxError: "),
    "several lines": ("throw new TypeError('no\\n  port')", "TypeError: no port"),
    "properties": ("throw Object.assign(new Error('no port'), { code: 7 })", "Error: no port"),
    "no error": ("throw 'no port'", "no port"),
    "no text": ("throw { toString() { throw 1 } }", "it threw something that has no text"),
    "later": ("setTimeout(() => { throw new Error('no port') }); await new Promise(() => {})", "Error: no port"),
    "never": ("await new Promise(() => {})", "Error: its top-level await never ends"),
}


@NODE
@pytest.mark.parametrize("which", REASONS)
async def test_why_a_javascript_module_does_not_import_is_told(tmp_path: Path, which: str) -> None:
    text, reason = REASONS[which]
    if text is not None:
        (tmp_path / "m.mjs").write_text(text, encoding="utf-8")
    state, error = await outcome(tmp_path, Task("a", run=writes, checks=[Check(imports_js="./m.mjs")]))
    assert state == "failed"
    assert f"`imports_js ./m.mjs` exited with 1 (expected: 0): cannot import ./m.mjs: {reason}" in (error or "")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import nothing_of_this_name", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("raise ValueError('no port:\\n  field required\\n  see https://example.org')", "ValueError: no port: field"),
        ("raise ExceptionGroup('two', [ValueError('a'), ValueError('b')])", "ExceptionGroup: two"),
    ],
)
async def test_why_a_python_module_does_not_import_is_told(tmp_path: Path, text: str, reason: str) -> None:
    (tmp_path / "module_of_a_check.py").write_text(text, encoding="utf-8")
    state, error = await outcome(tmp_path, Task("a", run=writes, checks=[Check(imports="module_of_a_check")]))
    assert state == "failed"
    told = f"`imports module_of_a_check` exited with 1 (expected: 0): cannot import module_of_a_check: {reason}"
    assert told in (error or "")


async def test_without_node_that_is_what_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    told = await outcome(tmp_path, Task("a", run=writes, checks=[Check(imports_js="./a.mjs")]))
    assert told == ("failed", "cannot import './a.mjs': there is no `node` on PATH; install Node.js")


async def test_tests_lint_and_scripts_are_commands(tmp_path: Path) -> None:
    (tmp_path / "calc.py").write_text("def add(a, b):\n    return a + b\n", encoding="utf-8")
    (tmp_path / "test_calc.py").write_text(
        "import unittest, calc\nclass T(unittest.TestCase):\n    def test(self): self.assertEqual(calc.add(1, 2), 3)\n",
        encoding="utf-8",
    )
    (tmp_path / "check.sh").write_text("grep -q def calc.py", encoding="utf-8")
    checks = [
        Check(file="calc.py"),
        Check(imports="calc"),
        Check(command=[sys.executable, "-m", "unittest", "-q", "test_calc"]),
        Check(command=[sys.executable, "-m", "compileall", "-q", "calc.py"]),
        Check(command=["sh", "check.sh"]),
    ]
    assert (await outcome(tmp_path, Task("a", run=writes, checks=checks)))[0] == "completed"
    state, error = await outcome(tmp_path, Task("a", run=writes, checks=[*checks, Check(command="exit 3", shell=True)]))
    assert state == "failed"
    assert "3" in (error or "")
