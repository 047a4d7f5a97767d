"""`callboard serve` as a separate program."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

import callboard

SOURCE = str(Path(callboard.__file__).parents[1])
HELD = """
name = "held"
[[tasks]]
name = "first"
command = "true"
shell = true
[[tasks]]
name = "deploy"
command = "true"
shell = true
depends_on = ["first"]
hold = {}
"""
Serve = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    """Starts `callboard serve` in a folder of its own; whatever still runs is killed."""
    (tmp_path / "held.toml").write_text(HELD)
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
        code = "from callboard.runtime.cli import main; main()"
        one = subprocess.Popen(
            [sys.executable, "-c", code, "serve", "--port", "0", *arguments], cwd=tmp_path, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": SOURCE, **variables},
        )  # fmt: skip
        started.append(one)
        return one

    yield start
    for one in started:
        if one.poll() is None:
            one.kill()
        one.communicate()


def url(server: subprocess.Popen[str]) -> str:
    """The address that the program prints."""
    assert server.stdout is not None
    for line in server.stdout:
        if found := re.search(r"http://\S+", line):
            return found.group()
    assert server.stderr is not None
    raise AssertionError(server.stderr.read())


def test_what_is_unfinished_goes_on_when_it_is_served_again(serve: Serve) -> None:
    for _ in range(2):
        server = serve("--run", "held.toml")
        with httpx.Client(base_url=url(server), timeout=600) as client:
            assert "Callboard" in client.get("/").text
            (job,) = client.get("/api/jobs").json()["items"]
            assert (job["name"], job["state"]) == ("held", "running")
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=600)
        assert server.returncode == 0
        assert "nothing new starts" in err
        assert "stopped" in out


def test_another_address_needs_tokens(serve: Serve, tmp_path: Path) -> None:
    server = serve("--host", "0.0.0.0")
    _, err = server.communicate(timeout=600)
    assert server.returncode == 2
    assert "Give it tokens" in err
    file = tmp_path / "tokens.toml"
    file.write_text('[[tokens]]\nname = "ana"\nsecret = "0123456789abcdef"\n')
    file.chmod(0o644)
    _, err = serve("--tokens", str(file)).communicate(timeout=600)
    assert "chmod 600" in err
    file.chmod(0o600)
    server = serve("--host", "0.0.0.0", "--tokens", str(file))
    with httpx.Client(base_url=url(server).replace("0.0.0.0", "127.0.0.1"), timeout=600) as client:
        assert client.get("/api/jobs").status_code == 401
        shown = {"Authorization": "Bearer 0123456789abcdef"}
        assert client.get("/api/jobs", headers=shown).json()["items"] == []
        assert client.post("/api/jobs", headers=shown, json={}).status_code in {403, 405}
    server.send_signal(signal.SIGTERM)
    assert server.wait(600) == 0


def test_a_board_leaves_alone_how_its_program_logs() -> None:
    """In a process of its own, where none was made before."""
    code = """
import logging
before = list(logging.root.handlers), logging.root.level
from callboard import Runtime
from callboard.runtime.web.http.app import HANDLERS
from callboard.runtime.web.http.described import _description
from callboard.web import board
board(Runtime()), _description(HANDLERS)
assert (list(logging.root.handlers), logging.root.level) == before, logging.root.handlers
"""
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": SOURCE})
