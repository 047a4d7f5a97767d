"""Reports by one notice that progress and text of running bodies cannot be shared: this delays and breaks nothing.

Rules
-----
- Other notices report a database that does not answer. So a `JournalError` is reported only after `TRIES` failed tries
  in a row, and then once until a try succeeds.
- Any other error is a fault of this program, or data of another version: it is reported at once, and only once.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

from ...actors.user_code import message_of
from ..errors import JournalError, RuntimeClosed

TRIES = 8
"""Failed tries in a row before a notice reports it: with the growing delays between them, ten seconds or more."""


class LastingFailure:
    """Counts the failures of one repeated act. notice: emits a notice. what: what cannot be done, for its text."""

    def __init__(self, notice: Callable[..., Any], what: str) -> None:
        self._notice = notice
        self._what = what
        self._tries = 0  # failed ones since the last success
        self._told = False
        self._unexpected = False  # an error was reported that is no JournalError

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
        """Note whether one try fails, and raise no error but RuntimeClosed: a mere display must not break anything."""
        try:
            yield
        except RuntimeClosed:
            raise
        except Exception as error:
            self.failed(error)
        else:
            self.succeeded()
