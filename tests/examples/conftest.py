"""Fixtures of the examples' tests: a copy of the examples, and a shell that runs their commands unchanged."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def environment() -> dict[str, str]:
    """An environment whose `callboard` and `python` are those of the tests."""
    ours = ("WORDCOUNT_", "CALLBOARD_", "PYTEST_ADDOPTS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    return kept | {"PATH": path, "PYTHONWARNINGS": "error", "COLUMNS": "200"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a copy of `examples/`, so that the examples write no files into the project."""
    ignored = shutil.ignore_patterns("__pycache__", "dist", "build", "pipeline-data", "*.db*")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=ignored)
    return tmp_path


@pytest.fixture
def run(checkout: Path) -> Run:
    """Run a command as it is written in the examples, in the copy's folder. Fails unless its exit code is `code`."""

    def run_it(command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command.split(), cwd=checkout, env=environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=600, check=False,
        )  # fmt: skip
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run_it
