"""A real `callboard serve`, the jobs that run in it, and the content of its journal afterwards.

Rules
-----
- No test sleeps to wait. A command that must run until a test ends it reads from a named pipe (`Gate`). The effects of
  the server are read from the page, with a limit that is much longer than needed.
- The journal is read from its file, and never through the server that is being tested.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError

import pytest
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, "-c", "from callboard.runtime.cli import main; main()"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
PATIENCE = 60.0
"""Seconds that each step may take on a busy machine."""

ENDED = {"completed", "failed", "cancelled"}
"""The states of a job that has ended."""

_numbers = count(1)


class Step(NamedTuple):
    """One transition, as the journal has it."""

    entity: str
    event: str
    state: str
    reason: str | None
    by: str | None


class Gate:
    """A gate at which a command waits until the test opens it: `read line < gate`, in a shell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        # Open for both directions, so that neither the command nor the test waits for the other to open it.
        self._ends = os.open(path, os.O_RDWR)

    def __str__(self) -> str:
        return str(self.path)

    def let(self, line: str = "go") -> None:
        """Let one command pass: it reads this line."""
        os.write(self._ends, f"{line}\n".encode())

    def close(self) -> None:
        os.close(self._ends)


class Theatre:
    """A journal in a folder, and a server that has it open. After a stop it starts again at the same address."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.journal = folder / "callboard.db"
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        self._gates: list[Gate] = []
        self._jobs: list[str] = []

    def start(self) -> None:
        """Start the server, and wait until it answers."""
        command = [
            *PROGRAM, "serve", "--journal", str(self.journal), "--port", str(self.port), *self._options,
        ]  # fmt: skip
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.folder, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        limit = time.monotonic() + PATIENCE
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > limit:
                self.kill()
                pytest.fail(f"the server does not answer:\n{self.log.read_text()}")
            time.sleep(0.05)  # another process sends no event here: check repeatedly

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/health/ready", timeout=PATIENCE) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    @property
    def log(self) -> Path:
        """The log of the server."""
        return self.folder / "serve.log"

    def kill(self) -> None:
        """`kill -9`."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the server as an operator does, and check its journal."""
        if self._process is not None:
            self.clear()
            self._end(signal.SIGTERM)
        if self.journal.exists():
            ended = subprocess.run(
                [*PROGRAM, "check", "--journal", str(self.journal)],
                env=ENVIRONMENT,
                capture_output=True,
                text=True,
                check=False,
            )
            assert ended.returncode == 0, ended.stdout + ended.stderr

    def _end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            pytest.fail(f"the server does not end by {how.name}:\n{self.log.read_text()}")
        self._process = None

    def gate(self) -> Gate:
        """Make a gate for one command."""
        gate = Gate(self.folder / f"gate-{next(_numbers)}")
        self._gates.append(gate)
        return gate

    def submit(self, name: str, tasks: list[dict[str, Any]], *, by: str = "eve", **more: Any) -> str:
        """Submit a workstream over HTTP; returns the id of its job."""
        job = f"job-{next(_numbers)}"
        said = {"id": job, "by": by, "workstream": {"name": name, "tasks": tasks, **more}}
        self.post("/api/jobs", said)
        self._jobs.append(job)
        return job

    def clear(self) -> None:
        """Cancel the submitted jobs that have not ended, so that they take no slot from the next test.

        Returns when they have ended: so none of them leaves a list while the next test reads it.
        """
        for job in self._jobs:
            with suppress(HTTPError):  # the job has ended, or is being cancelled
                self.post(f"/api/jobs/{job}/cancel", {"force": True})
        while self._jobs:
            job = self._jobs.pop()
            self._wait(lambda job=job: self._state(job) in ENDED, f"{job} has not ended")
        for gate in self._gates:
            gate.close()
        self._gates.clear()

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """Send a request of another client over HTTP."""
        request = urllib.request.Request(
            self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def wait(self, job: str, task: str, state: str) -> None:
        """Wait until a task is in a state, by the journal's file."""
        self._wait(lambda: self.path(job, task)[-1:] == [state], f"{task} of {job} is not {state}")

    def _wait(self, condition: Callable[[], bool], otherwise: str) -> None:
        limit = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < limit, f"{otherwise}:\n{self.log.read_text()}"
            time.sleep(0.02)  # another process sends no event here: check repeatedly

    def _state(self, job: str) -> str | None:
        return next((step.state for step in reversed(self.steps(job)) if step.entity == job), None)

    def steps(self, job: str, task: str | None = None) -> list[Step]:
        """The transitions of a job, or of one task of it, in order, from the journal's file."""
        query = (
            "SELECT entity_id, event, to_state, reason, json_extract(metadata, '$.by') FROM state_transitions"
            " WHERE job_id = ? ORDER BY seq"
        )
        with closing(sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True)) as file:
            found = [Step(*row) for row in file.execute(query, (job,))]
        return [step for step in found if task is None or step.entity.endswith(f"/{task}")]

    def jobs(self) -> list[str]:
        """The ids of the jobs in the journal's file."""
        with closing(sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True)) as file:
            return [row[0] for row in file.execute("SELECT id FROM jobs ORDER BY key")]

    def path(self, job: str, task: str) -> list[str]:
        """The states that a task has been in, in order."""
        return [step.state for step in self.steps(job, task)]
