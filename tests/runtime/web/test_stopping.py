"""A server that gets the order to stop ends, whatever requests and streams a mounted board has."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from anyio.from_thread import start_blocking_portal
from tests.ports import free_port

from callboard import Runtime
from callboard.runtime.web.http import stopping
from callboard.runtime.web.http.listening import KEPT, UNSAID, ListeningSockets, address_of
from callboard.runtime.web.http.stopping import told_to_stop
from callboard.web import board

ENDS = 60.0
"""Seconds in which it ends: what is not answered has three, and leaving a runtime some."""

DEPLOYING = Path(__file__).parents[3] / "docs" / "deploying.md"

PROGRAM = """
    import os

    from callboard import Runtime
    from callboard.web import board

    runtime = Runtime(JOURNAL, drain_deadline=1)
    boarding = board(runtime, commands=True)

    async def app(scope, receive, send):
        if scope["type"] == "lifespan":
            await receive()
            await runtime.open()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            await runtime.close()
            open(f"left.{os.getpid()}", "w").close()
            await send({"type": "lifespan.shutdown.complete"})
        else:
            await boarding(scope, receive, send)
"""


class Server:
    """A program of its own that a server serves, with its defaults; the board is at the prefix."""

    def __init__(
        self,
        folder: Path,
        *options: str,
        journal: str = '"state.db"',
        by: str = "uvicorn",
        at: str = "a port",
        program: str = PROGRAM,
        prefix: str = "",
    ) -> None:
        (folder / "app.py").write_text(textwrap.dedent(program).replace("JOURNAL", journal))
        self.port = free_port()
        self.path = None if at == "a port" else str(folder / "board.sock")
        self.prefix = prefix
        bound = f"127.0.0.1:{self.port}" if self.path is None else f"unix:{self.path}"
        where = ["--bind", bound] if by == "hypercorn" else ["--port", str(self.port)]
        command = [sys.executable, "-m", by, "app:app", *where, *options]
        self.process = subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        until = time.monotonic() + 60
        while not self.answers():
            assert time.monotonic() < until, self.told()
            time.sleep(0.05)

    def answers(self) -> bool:
        try:
            return b"200" in self.ask("GET /api/health HTTP/1.1", close=True).readline()
        except OSError:
            return False

    def ask(self, line: str, *more: str, body: str = "", close: bool = False) -> Any:
        """Ask something; returns the file that the answer is read from."""
        connection = socket.socket(socket.AF_INET if self.path is None else socket.AF_UNIX)
        connection.settimeout(60)
        try:
            connection.connect(self.path or ("127.0.0.1", self.port))
        except OSError:
            connection.close()
            raise
        lines = [
            line.replace(" /", f" {self.prefix}/", 1),
            "Host: localhost",
            *more,
            *(["Connection: close"] if close else []),
        ]
        if body:
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        connection.sendall("\r\n".join([*lines, "", body]).encode())
        file = connection.makefile("rb")
        connection.close()  # the file keeps it
        return file

    def ends(self) -> str:
        """Order it to stop, and wait for its end. Returns its output."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.communicate(timeout=ENDS)[0]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it has not ended:\n{self.told()}") from None

    def told(self) -> str:
        self.process.kill()
        return self.process.communicate()[0]


@contextmanager
def served(folder: Path, *options: str, **how: str) -> Iterator[Server]:
    server = Server(folder, *options, **how)
    try:
        yield server
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


@pytest.mark.parametrize("http", ["h11", "httptools"])
@pytest.mark.parametrize("asked", ["GET /api/events HTTP/1.1", "GET /api/events HTTP/1.0"])
def test_a_stream_that_somebody_reads_ends_when_the_server_is_told_to_stop(
    http: str, asked: str, tmp_path: Path
) -> None:
    if http == "httptools":
        pytest.importorskip("httptools")
    with served(tmp_path, "--http", http) as server:
        stream = server.ask(asked)
        while b"text/event-stream" not in stream.readline():
            pass
        output = server.ends()
        assert b"event: closing" in stream.read()
        assert "Traceback" not in output


def test_a_stream_that_nobody_reads_does_not_keep_it(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        streams = [server.ask("GET /api/events?after=0 HTTP/1.1") for _ in range(3)]
        server.ends()
        for stream in streams:
            stream.close()


def test_a_command_that_waits_for_a_journal_which_is_gone_is_answered(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        for path in tmp_path.glob("state.db*"):
            if path.is_file():
                path.unlink()
        stream = server.ask("GET /api/events HTTP/1.1")
        body = '{"workstream": {"name": "w", "tasks": [{"name": "a", "command": ["true"]}]}, "id": "w"}'
        answer = server.ask("POST /api/jobs HTTP/1.1", body=body)
        assert server.answers()  # so it has read the requests sent before: it only cuts off those that it has not read
        server.ends()
        stream.close()
        assert answer.readline().split()[1] == b"503"


def test_several_processes_of_a_server_end_too(tmp_path: Path) -> None:
    with served(tmp_path, "--workers", "2", journal="None") as server:
        streams = [server.ask("GET /api/events HTTP/1.1") for _ in range(6)]
        for stream in streams:
            assert b"200" in stream.readline()
        server.ends()
        for stream in streams:
            assert b"event: closing" in stream.read()


@pytest.mark.parametrize("at", ["a port", "a path"])
@pytest.mark.parametrize("worker_class", ["asyncio", "uvloop", "trio"])
def test_a_server_that_is_not_uvicorn_ends_too(worker_class: str, at: str, tmp_path: Path) -> None:
    """hypercorn waits without a limit from Python 3.12 on, and cuts streams off before. It does not say that a request
    has come to a Unix socket.
    """
    pytest.importorskip("hypercorn")
    pytest.importorskip(worker_class)
    with served(tmp_path, "--worker-class", worker_class, by="hypercorn", at=at) as server:
        stream = server.ask("GET /api/events HTTP/1.1")
        while b"text/event-stream" not in stream.readline():
            pass
        server.ends()
        assert b"event: closing" in stream.read()


def test_hypercorn_with_several_workers_has_all_leave_their_runtimes_where_those_take_signals(tmp_path: Path) -> None:
    """Hypercorn kills the other workers by SIGTERM once the first one has ended: the one that drains here."""
    pytest.importorskip("hypercorn")
    with served(tmp_path, "--workers", "2", journal="None, signals=True", by="hypercorn") as server:
        body = '{"workstream": {"name": "w", "tasks": [{"name": "a", "command": ["sleep", "600"]}]}, "id": "w"}'
        assert server.ask("POST /api/jobs HTTP/1.1", body=body).readline().split()[1] == b"201"
        server.ends()
        assert len(list(tmp_path.glob("left.*"))) == 2


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_granian_ends_as_the_documents_tell(loop: str, tmp_path: Path) -> None:
    pytest.importorskip("granian")
    pytest.importorskip(loop)
    program = DEPLOYING.read_text().partition("### granian")[2].partition("```python\n")[2].partition("```")[0]
    options = ("--interface", "asgi", "--loop", loop)
    with served(tmp_path, *options, by="granian", program=program, prefix="/board") as server:
        stream = server.ask("GET /api/events HTTP/1.1")
        while b"text/event-stream" not in stream.readline():
            pass
        output = server.ends()
        assert b"event: closing" in stream.read()
        assert server.process.returncode == 0
        assert "Traceback" not in output


@pytest.mark.parametrize("known_by", ["its connections", "its socket"])
def test_a_server_in_a_thread_without_signals_ends_its_streams_and_another_one_goes_on(known_by: str) -> None:
    """Its stop is detected by its connections, which it does not keep alive, or because it no longer listens, as with
    any server. The next server can use the board.
    """
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Runtime()) as runtime:
        app: Any = portal.call(board, runtime)

        async def hidden(scope: Any, receive: Any, send: Any) -> None:
            async def ask() -> Any:
                return await receive()

            await boarding(scope, ask, send)

        boarding, app = app, hidden if known_by == "its socket" else app
        for _ in range(2):
            port = free_port()
            server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_level="critical"))
            serving = portal.start_task_soon(server.serve)
            until = time.monotonic() + 60
            while not server.started:
                assert time.monotonic() < until
                time.sleep(0.01)
            with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
                connection.sendall(b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
                with connection.makefile("rb") as stream:
                    assert b"200" in stream.readline()
                    server.should_exit = True
                    assert b"event: closing" in stream.read()
            serving.result(ENDS)


def test_a_question_that_the_journal_does_not_answer_holds_up_no_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a database whose disk hangs: the thread that asks it cannot be interrupted."""
    monkeypatch.setattr(stopping, "PATIENCE", 0.2)
    asked, answers = threading.Event(), threading.Event()

    def silent(job_id: str) -> None:
        asked.set()
        answers.wait()

    with start_blocking_portal() as portal, portal.wrap_async_context_manager(Runtime(tmp_path / "s.db")) as runtime:
        runtime.journal.reader.job = silent  # type: ignore[method-assign]
        port = free_port()
        app: Any = portal.call(board, runtime)
        server = uvicorn.Server(uvicorn.Config(app, port=port, lifespan="off", log_level="critical"))
        serving = portal.start_task_soon(server.serve)
        until = time.monotonic() + 60
        while not server.started:
            assert time.monotonic() < until
            time.sleep(0.01)
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=600) as connection:
                connection.sendall(b"GET /api/jobs/none HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert asked.wait(600)
                server.should_exit = True
                with connection.makefile("rb") as answer:
                    assert answer.readline().split()[1] == b"503"
            serving.result(ENDS)
            assert runtime.is_open
        finally:
            answers.set()


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="handlers are the main thread's")
def test_a_server_is_known_by_its_handler_and_nothing_is_taken_from_it() -> None:
    before = signal.getsignal(signal.SIGTERM)
    server = uvicorn.Server(uvicorn.Config("nothing:nothing"))
    assert not told_to_stop()
    with server.capture_signals():
        assert not told_to_stop()
        server.should_exit = True
        assert told_to_stop()
        assert signal.getsignal(signal.SIGTERM) == server.handle_exit
    assert not told_to_stop()
    assert signal.getsignal(signal.SIGTERM) is before
    assert stopping.PATIENCE < 10  # containers are killed then


def test_a_server_is_known_by_its_socket_as_long_as_it_listens() -> None:
    listening = ListeningSockets()
    port = free_port()
    with socket.create_server(("127.0.0.1", port)) as first:
        scope = {"server": ("127.0.0.1", port)}
        with socket.create_connection(("127.0.0.1", port)) as client, first.accept()[0]:  # neither of them listens
            assert client.getpeername()[1] == address_of(scope) == port
            assert not listening.closed(port)
            first.close()
            assert listening.closed(port)
    with socket.create_server(("127.0.0.1", port)):
        assert not listening.closed(port)


def test_a_server_is_known_by_the_path_of_its_socket(tmp_path: Path) -> None:
    path, listening = str(tmp_path / "board.sock"), ListeningSockets()
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(path)
        one.listen()
        address = address_of({"server": (path, None)})
        assert not listening.closed(address)
    assert listening.closed(address)


def test_a_server_that_does_not_say_where_it_listens_has_the_unix_socket_of_its_process(tmp_path: Path) -> None:
    path, listening = str(tmp_path / "board.sock"), ListeningSockets()
    assert address_of({}) == address_of({"server": None}) == UNSAID
    with socket.create_server(("127.0.0.1", 0)):  # is none
        assert not listening.closed(UNSAID)
        listening = ListeningSockets()
        with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
            bell.bind(str(tmp_path / "bell.sock"))  # no process listens there
            one.bind(path)
            one.listen()
            assert not listening.closed(UNSAID)
            one.close()
            assert listening.closed(UNSAID)


def test_of_a_server_that_listens_elsewhere_or_nowhere_nothing_is_said() -> None:
    looked: list[object] = []
    listening = ListeningSockets(looked.append)  # finds nothing
    for server in (None, ("testserver", 80), ["testserver", 80], ("testserver", None), ("testserver",), 80):
        assert not listening.closed(address_of({"server": server}))
    assert looked == [UNSAID, 80, "testserver"]


def test_few_addresses_are_kept_in_mind() -> None:
    looked: list[object] = []
    listening = ListeningSockets(looked.append)
    for port in (*range(KEPT + 1), KEPT, 0):
        listening.closed(port)
    assert looked == [*range(KEPT + 1), 0]
