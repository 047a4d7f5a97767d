"""What running bodies show to other processes through a database: their progress, and a part of their text.

These data are no history: they are not durable, and are removed when the attempt ends.
"""

from __future__ import annotations

from typing import NamedTuple

from ..calling import Progress


class LiveProgress(NamedTuple):
    """The last progress of the running body of a task. key: of the task. token: of the attempt."""

    task_id: str
    key: int
    token: int
    progress: Progress


class LiveText(NamedTuple):
    """A part of the text that the running body of a task has emitted. task: its key. token: of the attempt.

    place: characters before the part. over: whether the attempt is over, and no text follows.
    """

    task: int
    token: int
    place: int
    text: str
    over: bool = False


class TextPlace(NamedTuple):
    """A place in the text of an attempt: so many characters are before it."""

    task: int
    token: int
    place: int


EVERYTHING = 1 << 62
"""A place behind every text."""
