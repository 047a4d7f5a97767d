"""Tells by one notice that what running bodies show cannot be shared, which holds up nothing and raises nowhere.

Rules
-----
- A database that does not answer for a while is no news here: its own notices tell of that. So a `JournalError` is told
  after `TRIES` tries in a row that failed, and once until a try succeeds.
- Any other error is a fault of this program, or data of another version: it is told at once, and once in all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from ...actors.user_code import message_of
from ..errors import JournalError, RuntimeClosed

TRIES = 8
"""Tries in a row that fail before a notice tells of it: with the growing delays between them, ten seconds or more."""


class LastingFailure:
    """Counts the failures of one repeated act. notice: emits a notice. what: what cannot be done, for its text."""

    def __init__(self, notice: Callable[..., Any], what: str) -> None:
        self._notice = notice
        self._what = what
        self._tries = 0  # that failed, since one succeeded
        self._told = False
        self._unexpected = False  # an error was told that is no JournalError

    def failed(self, error: Exception) -> None:
        """Note a try that failed."""
        self._tries += 1
        expected = isinstance(error, JournalError)
        if (self._told if expected else self._unexpected) or (expected and self._tries < TRIES):
            return
        self._told, self._unexpected = True, self._unexpected or not expected
        text = f"{self._what}, and it is tried again; nothing else is held up: {message_of(error)}"
        self._notice("not_shared", "warning", text, raised=error, tries=self._tries)

    def succeeded(self) -> None:
        """Note a try that succeeded."""
        self._tries, self._told = 0, False

    @contextmanager
    def contained(self) -> Generator[None]:
        """Note whether one try fails, and let no error but RuntimeClosed out: what is only for show breaks nothing."""
        try:
            yield
        except RuntimeClosed:
            raise
        except Exception as error:
            self.failed(error)
        else:
            self.succeeded()
