"""A private PostgreSQL in a temporary folder, for tests, examples and benchmarks.

    with PrivateServer() as server:
        async with Runtime(server.address("callboard")) as runtime: ...

`python -m callboard.runtime.testing.postgres` starts one, prints its address, and ends it on Ctrl-C or when its input
ends.

Rules
-----
- It listens on a Unix socket in a private folder, which only its user can enter, and on no port.
- PostgreSQL refuses to be run by root. Then it runs as `postgres`, or as `nobody`.
- A guard process ends it and removes the folder as soon as the process that made it has ended in any way.
- Data are as safe as in any server. `fsync=False` saves time, and loses data only on a loss of power.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

_PLACES = ("/usr/lib/postgresql", "/usr/local/pgsql", "/opt/homebrew/opt/postgresql")
"""Folders of PostgreSQL on systems without it in PATH: `bin` there, or in a folder for each version."""
_SETTINGS = """
listen_addresses = ''
unix_socket_directories = '{folder}'
max_connections = 200
shared_buffers = 32MB
max_wal_size = 256MB
fsync = {fsync}
"""
# Members of the role `passworded` must give a password.
_ACCESS = """
local all {superuser} trust
local all +passworded scram-sha-256
local all all trust
"""
_GUARD = 'cat >/dev/null; "$1" stop -D "$2/data" -m immediate -s >/dev/null 2>&1; rm -rf "$2"'
"""Waits for the end of its input, which comes when the process at the other end of the pipe ends."""
SUPERUSER = "postgres"


class NoPostgres(Exception):  # noqa: N818 - the name says what is missing
    """PostgreSQL's programs were not found. Install them (Debian: `postgresql`), or add them to PATH."""


def programs() -> Path:
    """The folder with PostgreSQL's programs, of its newest version. Raises NoPostgres."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).resolve().parent
    made = [
        path.parent
        for place in _PLACES
        for path in [*Path(place).glob("bin/initdb"), *Path(place).glob("*/bin/initdb")]
    ]
    if not made:
        raise NoPostgres(str(NoPostgres.__doc__))
    return max(made, key=lambda path: [int(part) for part in path.parent.name.split(".") if part.isdigit()])


class PrivateServer:
    """A private server, from its creation until `close`. Raises NoPostgres; OSError or RuntimeError on failures."""

    def __init__(self, *, fsync: bool = True) -> None:
        self._programs = programs()
        self._as = _somebody()
        self.folder = Path(tempfile.mkdtemp(prefix="callboard-pg-"))
        self._guard = self._start_guard()
        try:
            self._run("initdb", "--no-sync", "--username", SUPERUSER, "--auth", "trust", "--encoding", "UTF8",
                      "--no-locale", "--no-instructions")  # fmt: skip
            data = self.folder / "data"
            with (data / "postgresql.conf").open("a") as file:
                file.write(_SETTINGS.format(folder=self.folder, fsync="on" if fsync else "off"))
            (data / "pg_hba.conf").write_text(_ACCESS.format(superuser=SUPERUSER))
            self.start()
        except BaseException:
            self.close()
            raise

    def address(
        self, schema: str = "", *, user: str = SUPERUSER, password: str = "", database: str = "postgres"
    ) -> str:
        """The address of one of its databases, as `Runtime` takes it."""
        who = quote(user, safe="") + (f":{quote(password, safe='')}" if password else "")
        given = f"host={quote(str(self.folder), safe='')}" + (f"&schema={schema}" if schema else "")
        return f"postgresql://{who}@/{quote(database, safe='')}?{given}"

    def start(self) -> None:
        """Start the server; returns when it accepts connections."""
        self._run("pg_ctl", "start", "-w", "-t", "60", "-s", "-l", str(self.folder / "log"))

    def stop(self, how: str = "immediate") -> None:
        """Stop the server, "fast" or "immediate" (as a crash does). Committed data stays."""
        self._run("pg_ctl", "stop", "-w", "-t", "60", "-s", "-m", how)

    def close(self) -> None:
        """End the server, and remove its folder."""
        self._guard.communicate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The process id of the server."""
        return int((self.folder / "data" / "postmaster.pid").read_text().split()[0])

    def log(self) -> str:
        """The text of its log."""
        with contextlib.suppress(FileNotFoundError):
            return (self.folder / "log").read_text()
        return ""

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(  # noqa: S603 - PostgreSQL's own programs
            [self._programs / program, "-D", self.folder / "data", *arguments],
            cwd=self.folder, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            check=False, env=_plain(), start_new_session=True, **self._as,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program} failed ({done.returncode}): {done.stdout}{self.log()[-2000:]}")

    def _start_guard(self) -> subprocess.Popen[str]:
        if self._as:
            os.chown(self.folder, self._as["user"], self._as["group"])
        return subprocess.Popen(  # noqa: S603 - a shell of the system
            ["/bin/sh", "-c", _GUARD, "guard", self._programs / "pg_ctl", self.folder],
            cwd="/", stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True,
            env=_plain(), start_new_session=True, **self._as,
        )  # fmt: skip


def _plain() -> dict[str, str]:
    """The environment without variables that PostgreSQL would read."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PG")} | {"LC_ALL": "C"}


def _somebody() -> dict[str, Any]:  # Any: arguments of Popen, of several types
    """The user of the server's processes, as arguments of Popen: another user if this one is root."""
    if os.geteuid() != 0:
        return {}
    for name in (SUPERUSER, "nobody"):
        with contextlib.suppress(KeyError):
            found = pwd.getpwnam(name)
            return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}
    raise NoPostgres(
        "PostgreSQL does not run as root, and there is no user `postgres` or `nobody`: run this as another user."
    )


def main() -> None:
    """Start a server, print its address, and end it on Ctrl-C, SIGTERM or the end of its input."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with PrivateServer() as server, contextlib.suppress(KeyboardInterrupt):
        sys.stdout.write(f"{server.address('callboard')}\n")
        sys.stdout.flush()
        if _is_given_input():
            sys.stdin.read()
        else:  # in the background, or as a service: its input is empty
            while True:
                signal.pause()


def _is_given_input() -> bool:
    if sys.stdin is None:  # pyright: ignore[reportUnnecessaryComparison] - None if the input was closed
        return False
    return sys.stdin.isatty() or not stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode)


if __name__ == "__main__":
    main()
