"""Commands that messages name, with the journal or board of the command that was typed.

Rules
-----
- A hint can be pasted: it has `--journal`, or `--url` and `--token-file`, as they were typed; for the default none.
- It never has a password, since output is kept and shown to others.
- There is one command in a process, so what was typed is a fact of the process, as `sys.argv` is.
"""

from __future__ import annotations

from pathlib import Path
from shlex import quote

JOURNAL_NAME = "callboard.db"


class _Typed:
    """The place that was typed."""

    journal: str | None = None
    url: str | None = None
    token_file: Path | None = None


def forget() -> None:
    """Forget what the command before has typed."""
    _Typed.journal = _Typed.url = _Typed.token_file = None


def journal_typed(text: str | None) -> str | None:
    """Note the journal that was typed. Returns it."""
    _Typed.journal = text
    return text


def url_typed(text: str | None) -> str | None:
    """Note the board that was typed. Returns it."""
    _Typed.url = text
    return text


def token_file_typed(path: Path | None) -> Path | None:
    """Note the file of the token that was typed. Returns it."""
    _Typed.token_file = path
    return path


def hint(words: str) -> str:
    """Return the command `callboard WORDS` for that place, in backquotes."""
    return f"`callboard {words}{place_option()}`"


def place_option() -> str:
    """Return the options that name the place, with a space before each; empty for the default."""
    if _Typed.url is not None:
        token = "" if _Typed.token_file is None else f" --token-file {quote(str(_Typed.token_file))}"
        return f" --url {quote(_Typed.url)}{token}"
    if _Typed.journal is None or _Typed.journal == JOURNAL_NAME:
        return ""
    return f" --journal {quote(_without_password(_Typed.journal))}"


def _without_password(text: str) -> str:
    from ..errors import JournalError  # noqa: PLC0415 - needed for a message only
    from ..journal.location import looks_like_address, store_of  # noqa: PLC0415 - as above

    if not looks_like_address(text):
        return text
    try:
        return str(store_of(text))
    except JournalError:
        return "ADDRESS"
