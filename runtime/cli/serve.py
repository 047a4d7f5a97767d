"""`callboard serve`: run the jobs of a journal, and serve its board."""

from __future__ import annotations

import os
from collections.abc import AsyncIterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..extras import needs
from ..journal.location import Database, in_words, store_of, target_of
from .command_errors import CommandError, print_to_stderr
from .nodes import node_settings
from .onray import Address
from .options import DEFAULT, DRAIN, DrainDeadline, Journal, JsonLog, Lease, Node
from .terminal import echo

if TYPE_CHECKING:
    from ...actors.records.transition import Transitioned
    from ...actors.spec.model import Worker
    from ..handles.jobs import JobHandle
    from ..handles.outcomes import Outcome
    from ..journal.location import Store
    from ..observation.events import Dropped
    from ..runtime import Runtime
    from ..specfiles.workstream_file import RunFile
    from ..web.http.access import Token
    from ..web.http.gate import Application
    from .summary import DisplayedJob

PORT = 8470

Run = Annotated[Path | None, typer.Option("--run", metavar="FILE", help="Also submit this specification.")]
Host = Annotated[str, typer.Option("--host", metavar="ADDRESS", help="Where to listen; other hosts need tokens.")]
Port = Annotated[int, typer.Option("--port", metavar="NUMBER", min=0, max=65535, help="The port; 0 for any free one.")]
Hosts = Annotated[
    list[str] | None, typer.Option("--hostname", metavar="NAME", help="A host name under which browsers may reach it.")
]
TokensFile = Annotated[
    Path | None,
    typer.Option("--tokens", metavar="FILE", help="The allowed tokens (TOML): [[tokens]] with name, secret, scopes."),
]
AllowCommands = Annotated[
    bool, typer.Option("--allow-commands", help="Allow jobs submitted over HTTP to run commands and import functions.")
]


def serve(
    *,
    run: Run = None,
    journal: Journal = DEFAULT,
    host: Host = "127.0.0.1",
    port: Port = PORT,
    hostname: Hosts = None,
    tokens: TokensFile = None,
    allow_commands: AllowCommands = False,
    jsonl: JsonLog = None,
    node: Node = None,
    lease: Lease = None,
    address: Address = None,
    drain_deadline: DrainDeadline = DRAIN,
) -> None:
    """Run the jobs of a journal, and serve its board until Ctrl+C.

    Ctrl+C claims no more tasks and lets running ones end; a second one stops them, without counting their attempts; a
    third one exits at once. Unfinished jobs continue at the next start, or, with a database, on another node.
    """
    import anyio  # noqa: PLC0415 - heavy

    with needs("The board", "web"):
        from ..web.http import connection_limits as room  # noqa: PLC0415
        from ..web.http.app import board  # noqa: PLC0415 - an extra
        from ..web.http.serve import CannotServe, listening, serving, url_of  # noqa: PLC0415
    from ..runtime import Runtime  # noqa: PLC0415 - heavy
    from ..specfiles.workstream_file import load  # noqa: PLC0415
    from .functions import function  # noqa: PLC0415
    from .session import Session, see_through  # noqa: PLC0415
    from .spans import span  # noqa: PLC0415

    room.raised()
    accepted, draining = _tokens(tokens), span(drain_deadline)
    asked = None if run is None else load(run, functions=function)
    store = store_of(journal)
    as_node = node_settings(store, node, lease)
    workers = _workers(asked, store)
    try:
        listener = listening(host, port, accepted)
    except CannotServe as error:
        raise CommandError(str(error)) from None

    class Serving(Session):
        """A session that goes on until it is interrupted."""

        follows = False

        async def wait(self, runtime: Runtime, jobs: Sequence[JobHandle]) -> None:
            """Serve until the session is stopped."""
            del jobs
            async with serving(made[runtime], listener, self.view.notice):
                echo(f"serving {in_words(store)} at {url_of(listener)}")
                await anyio.sleep_forever()

    made: dict[Runtime, Application] = {}

    def opened() -> Runtime:
        runtime = Runtime(
            target_of(store), workers=workers, jsonl=jsonl, ray=address, drain_deadline=draining, **as_node
        )
        # before the runtime opens, since making a board blocks the loop
        made[runtime] = board(runtime, tokens=accepted, hosts=hostname or (), commands=allow_commands)
        return runtime

    async def begin(runtime: Runtime) -> list[JobHandle]:
        if asked is not None:
            await _submit(runtime, asked)
        return []

    with listener:  # close it also if the run stops before it is served
        raise typer.Exit(see_through(opened, begin, Serving(ServeView(store), draining)))


class ServeView:
    """Prints notices to stderr. The board shows transitions."""

    def __init__(self, store: Store) -> None:
        self._shared = isinstance(store, Database)

    async def follow(self, jobs: Sequence[DisplayedJob], events: AsyncIterable[Transitioned | Dropped]) -> None:
        """Show nothing."""

    def notice(self, text: str) -> None:
        """Print a notice."""
        print_to_stderr(text)

    def close(self) -> None:
        """Do nothing: there is nothing to restore."""

    def outcomes(self, ended: Sequence[Outcome], unfinished: Sequence[DisplayedJob], code: int) -> None:
        """Print that the program has stopped."""
        del ended, unfinished, code
        where = "on another node, or at the next start" if self._shared else "at the next start"
        echo(f"stopped: unfinished jobs continue {where}")


def _tokens(path: Path | None) -> list[Token]:
    from ..web.http.access import tokens_from, tokens_from_file  # noqa: PLC0415 - an extra

    try:
        return tokens_from(os.environ) if path is None else tokens_from_file(path)
    except (OSError, ValueError) as error:
        raise CommandError(str(error)) from None


def _workers(asked: RunFile | None, journal: Store) -> list[Worker] | None:
    """Return the file's workers, or the journal's last. Raises CommandError for jobs that cannot run here."""
    from .functions import refuse_unless_found  # noqa: PLC0415
    from .reading import reading_if_used  # noqa: PLC0415
    from .roster import last_workers  # noqa: PLC0415

    with reading_if_used(journal) as reader:
        if reader is None:
            return None if asked is None else asked.workers
        refuse_unless_found(reader, journal)
        return last_workers(reader.workers()) if asked is None else asked.workers


async def _submit(runtime: Runtime, asked: RunFile) -> None:
    """Submit the file's workstream, unless it is running here already, in the same folder."""
    name = asked.workstream.name
    for job in runtime.recovered:
        if job.record.name == name and not (job.ended and job.record.run > 1):  # else the inbox ended it
            echo(f"{name} goes on as job {job.id}")
            return
    job = await runtime.submit(asked.workstream)
    echo(f"{name} is job {job.id}")
