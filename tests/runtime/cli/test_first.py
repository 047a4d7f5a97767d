"""The command line as process 1: it reaps orphans, passes signals on, and ends with the program's exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.processes import runs
from tests.programs import killed_after

LONGEST = 60.0
UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
ALONE = UNSHARE if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", *UNSHARE[1:]]
CALLBOARD = [sys.executable, "-c", "from callboard.runtime.cli import main; main()"]


def as_first(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The command line as process 1 of a namespace of its own."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.Popen(
        [*ALONE, *CALLBOARD, *words], cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def namespaces() -> None:
    """There are some."""
    if subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode:
        pytest.skip("this machine gives no namespaces of processes")


def write(folder: Path, command: str) -> Path:
    file = folder / "work.toml"
    file.write_text(f"name = 'w'\n[[tasks]]\nname = 'a'\ncommand = ['sh', '-c', \"\"\"{command}\"\"\"]\n")
    return file


def test_orphans_are_reaped_and_the_exit_codes_of_commands_are_not(tmp_path: Path) -> None:
    orphan = "sleep 0.2; echo ended >> ended"
    orphans = f"for i in 1 2 3 4 5; do (setsid sh -c '{orphan}' > /dev/null 2>&1 &) ; done"
    ended = "until [ -e ended ] && [ $(wc -l < ended) = 5 ]; do sleep 0.1; done; sleep 1"
    count = "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l > zombies"
    look = (
        f"for i in $(seq 300); do {count}; [ $(cat zombies) = 0 ] && break; sleep 0.1; done; cat /proc/1/comm; exit 7"
    )
    file = write(tmp_path, f"{orphans}; {ended}; {look}")
    with killed_after(as_first(tmp_path, "run", str(file), "--plain")) as first:
        said, _ = first.communicate(timeout=LONGEST)
    assert (tmp_path / "zombies").read_text().strip() == "0", said
    assert "exited with 7" in said
    assert first.returncode == 1


def test_it_hears_a_stop(tmp_path: Path) -> None:
    file = write(tmp_path, "echo up > up; exec sleep 600")
    with killed_after(as_first(tmp_path, "run", str(file), "--plain", "--drain-deadline", "0")) as unshared:
        end = time.monotonic() + LONGEST
        while not (tmp_path / "up").exists():
            assert time.monotonic() < end
            assert unshared.poll() is None
            time.sleep(0.05)
        children = Path(f"/proc/{unshared.pid}/task/{unshared.pid}/children").read_text().split()
        (first,) = map(int, children)
        os.kill(first, signal.SIGTERM)
        unshared.communicate(timeout=LONGEST)
        assert not runs(first)
