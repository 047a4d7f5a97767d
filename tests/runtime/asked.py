"""Whether a journal is asked on the event loop, which waits meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from callboard.runtime.journal.written import WrittenJournal


@contextmanager
def asked_in_threads_only() -> Iterator[None]:
    """Whoever asks the journal on the event loop is told so."""
    loop = threading.get_ident()

    def reader(journal: Any) -> Any:
        assert threading.get_ident() != loop, "the journal was asked on the event loop"
        return journal._reader

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WrittenJournal, "reader", property(reader))
        yield
