"""What running bodies show to other processes through a database: their progress, and a part of their text.

It is no history: nothing of it is durable, and it is removed when the attempt ends.
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
