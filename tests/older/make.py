"""Make the journals here anew: `python -m tests.older.make` in a checkout of 5c07c26 that has this folder."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
from tests.older import shop

from callboard import Fire, Runtime, Worker

HERE = Path(__file__).parent


async def fill(address: str, lifecycle: str | None) -> None:
    """Leave the journal as a `kill -9` in the middle of everything does."""
    workers = [Worker("loop", engine="loop", capacity=40), Worker("threads", engine="thread", capacity=4),
               Worker("commands", engine="command", capacity=4)]  # fmt: skip
    runtime = Runtime(address, workers=workers, lifecycle=lifecycle)
    runtime.task(shop.plane)
    async with runtime:
        for name in shop.LIFECYCLED:
            job = await runtime.submit(shop.workstream(name), id=f"job-{name or 'own'}", by="ana")
            while job.task("go_on").record.state != "running":
                await anyio.sleep(0.01)
        await runtime.spawn(shop.door(), name="front").ask(Fire("close"))
        await runtime.spawn(shop.execution(), name="run-7").ask(Fire("ENQUEUE"))
        await runtime.settled(10)
        os.kill(os.getpid(), signal.SIGKILL)


def made(address: str, lifecycle: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.older.make", address, lifecycle], env={**os.environ, "OLDER": "make"}, check=False
    )


def main() -> None:
    from callboard.runtime.testing.postgres import PrivateServer, programs

    for lifecycle in ("own", "fleet"):
        path = Path(tempfile.mkdtemp()) / f"{lifecycle}.sqlite"
        made(str(path), lifecycle)
        with sqlite3.connect(path) as journal:
            journal.execute("PRAGMA journal_mode = DELETE")
        (HERE / f"{lifecycle}.sqlite.gz").write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    with PrivateServer() as server:
        address = server.address("older")
        made(address, "own")
        dump = subprocess.run(
            [programs() / "pg_dump", "--host", server.folder, "--username", "postgres", "--schema", "older",
             "--inserts", "--no-owner", "--no-privileges", "postgres"], check=True, capture_output=True, text=True,
        ).stdout  # fmt: skip
        lines = [line for line in dump.splitlines() if line and not line.startswith(("--", "\\"))]
        text = "\n".join(lines).replace(f"'{socket.gethostname()}", "'here")
        (HERE / "postgres.sql.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        anyio.run(fill, sys.argv[1], None if sys.argv[2] == "own" else sys.argv[2])
    else:
        main()
