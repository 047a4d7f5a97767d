"""`--url URL`: run a command against the runtime behind a board, instead of a journal.

Rules
-----
- Questions go to the board's HTTP interface, through the same `JournalQueries`; commands for the inbox are posted
  there. So the output is the same, and so are the exit codes: 4 means no answer in time.
- A token is read from a file (`--token-file`) or from the environment (`CALLBOARD_TOKEN`): everybody on the machine can
  see a command line.
- The name kept with a command is the token's; without a token, the login name.
- `anywhere` gives a command these options, and passes the place as `journal`: a path, a `Database`, or a `Board`.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias, TypeVar, get_type_hints

import typer

from ..extras import needs
from ..journal.location import Store, store_of
from .command_errors import CommandError
from .hints import journal_typed, token_file_typed, url_typed
from .options import DEFAULT, THE_JOURNAL

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from ..client.link import Link
    from ..journal.contract import JournalQueries

T = TypeVar("T")
TOKEN = "CALLBOARD_TOKEN"  # noqa: S105 - the name of a variable
TRY = 10.0
"""Seconds that one request may take."""
_AT_ONCE = 0.0  # seconds for which questions are repeated while a server does not answer

MaybeJournal = Annotated[
    str | None,
    typer.Option("--journal", "-j", metavar="FILE", callback=journal_typed, help=THE_JOURNAL, show_default=DEFAULT),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--url", metavar="URL", callback=url_typed, show_default=False,
        help="The board of a running runtime, instead of its journal.",
    ),
]  # fmt: skip
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file", metavar="FILE", callback=token_file_typed, show_default=False,
        help=f"The token for --url (default: ${TOKEN}).",
    ),
]  # fmt: skip


class Board:
    """The board of a runtime, by its address. After `asked` is entered, this thread can ask it."""

    def __init__(self, url: str, token: str | None) -> None:
        self.url = url
        self.token = token
        self._link: Link | None = None
        self._portal: BlockingPortal

    def __str__(self) -> str:
        return self.url

    @property
    def owner(self) -> str:
        """Name the program behind the board."""
        return f"the program at {self.url}"

    @contextmanager
    def asked(self) -> Generator[None]:
        """Open the connection. Raises CommandError if httpx is missing, or the address is invalid."""
        from anyio.from_thread import start_blocking_portal  # noqa: PLC0415 - heavy

        with start_blocking_portal() as self._portal:
            try:
                yield
            finally:
                self._portal.call(self._close)

    def reader(self) -> JournalQueries:
        """Make a reader that asks the board, with the questions of a journal."""
        from .overhttp import RemoteReader  # noqa: PLC0415 - heavy

        return RemoteReader(self)

    def ask(self, question: Callable[[Link], Awaitable[T]], patience: float = _AT_ONCE) -> T:
        """Ask the board. Raises CommandError if it does not answer, or does not have the thing asked for."""
        return self._portal.call(partial(self._ask, question, patience))

    async def _ask(self, question: Callable[[Link], Awaitable[T]], patience: float) -> T:
        from ..client.link import Link  # noqa: PLC0415 - heavy

        link = self._link
        if link is None:
            link = self._link = Link(self.url, token=self.token, timeout=TRY, patience=patience, transport=None)
        link.patience = patience
        return await question(link)

    async def _close(self) -> None:
        if self._link is not None:
            await self._link.close()


Place: TypeAlias = Store | Board
"""The place of a command: a journal's file or database, or a board."""


def anywhere(command: Callable[..., None]) -> Callable[..., None]:
    """Add `--url` and `--token-file` to a command with the parameter `journal`."""
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)

    def placed(**given: Any) -> None:
        place = _place(given.pop("journal"), given.pop("url"), given.pop("token_file"))
        with ExitStack() as stack:
            if isinstance(place, Board):
                stack.enter_context(place.asked())
            command(**given, journal=place)

    parameters = [parameter.replace(annotation=hints[name]) for name, parameter in signature.parameters.items()]
    at = next(index for index, parameter in enumerate(parameters) if parameter.name == "journal")
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [parameter.replace(kind=keyword) for parameter in parameters]
    parameters[at : at + 1] = [
        inspect.Parameter("journal", keyword, default=None, annotation=MaybeJournal),
        inspect.Parameter("url", keyword, default=None, annotation=Url),
        inspect.Parameter("token_file", keyword, default=None, annotation=TokenFile),
    ]
    placed.__name__, placed.__doc__ = command.__name__, command.__doc__
    placed.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    placed.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined] # the way to set it
    return placed


def _place(journal: str | None, url: str | None, token_file: Path | None) -> Place:
    if url is None:
        if token_file is not None:
            raise CommandError("--token-file needs --url: a journal needs no token.")
        return store_of(DEFAULT if journal is None else journal)
    if journal is not None:
        raise CommandError("--url and --journal name two places: give only one of them.")
    return Board(_address(url), _token(token_file))


def _address(url: str) -> str:
    with needs("--url", "client"):
        from ..client.link import checked  # noqa: PLC0415 - heavy
    try:
        return checked(url)
    except ValueError as error:
        raise CommandError(f"--url: {error}.") from None


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(TOKEN, "").strip() or None
    try:
        text = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"--token-file {file} cannot be read: {getattr(error, 'strerror', None) or error}."
        ) from None
    if not text or not text.isprintable() or " " in text:
        raise CommandError(f"--token-file {file} does not hold a token: it must be one word, and nothing else.")
    return text
