"""The parts of its bodies' text that a node writes, and when it removes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from callboard.runtime.cluster.shared_text import ROWS, SHARED, SharedText
from callboard.runtime.errors import RuntimeClosed
from callboard.runtime.journal.live import LiveText, TextPlace
from callboard.runtime.observation.live import PIECE, LiveTask

pytestmark = pytest.mark.anyio


class AloneNode:
    """A node context whose database is a dict, and which closes after the last step. A step comes in each pause."""

    def __init__(self) -> None:
        self.host = self.cluster = self
        self.now = 0.0
        self.rows: dict[tuple[int, ...], LiveText] = {}
        self.writes: list[int] = []  # the rows of each
        self.notices: list[str] = []
        self.errors: list[Exception] = []  # of the next writes
        self.running: list[Callable[[], Any]] = []
        self.steps: Iterator[Callable[[], object]] = iter(())
        self.on_listened: Any = None

    def monotonic(self) -> float:
        return self.now

    def notice(self, event: str, severity: str, text: str, **_: Any) -> None:
        self.notices.append(f"{event} {severity}: {text}")

    def start(self, run: Callable[[], Any]) -> None:
        self.running.append(run)

    async def ask_live(self, question: Callable[..., Any], *args: Any) -> Any:
        return question(*args)

    def write_text(self, parts: Sequence[LiveText], cuts: Sequence[TextPlace]) -> int:
        if self.errors:
            raise self.errors.pop(0)
        self.writes.append(len(parts))
        self.rows |= {part[:3]: part for part in parts}
        for cut in cuts:
            for place, part in list(self.rows.items()):
                if place[:2] == cut[:2] and part.place + len(part.text) <= cut.place:
                    del self.rows[place]
        return 1

    async def pause(self, seconds: float) -> None:
        self.now += seconds
        step = next(self.steps, None)
        if step is None:
            raise RuntimeClosed("the node leaves")
        step()

    @property
    def text(self) -> str:
        """The text of all rows, in their order."""
        return "".join(self.rows[place].text for place in sorted(self.rows))


class Tasks(dict[int, LiveTask]):
    """The running attempts of a node, by the keys of the tasks."""

    def of(self, key: int) -> LiveTask | None:
        return self.get(key)


def running(*keys: int) -> Tasks:
    """The attempts of tasks with these keys."""
    tasks = Tasks()
    for key in keys:
        tasks[key] = LiveTask(f"w@1/{key}", key)
        tasks[key].token = 7
    return tasks


def shared_by(node: Any, tasks: Any) -> SharedText:
    """The text that a node writes of these tasks."""
    return SharedText(node, tasks)


async def test_text_that_is_read_again_before_it_was_removed_stays() -> None:
    node, tasks = AloneNode(), running(1)
    shared = shared_by(node, tasks)
    tasks[1].show("text")
    seen: list[str] = []

    def long_after() -> None:
        seen.append(node.text)
        node.now += 60.0  # the reader has gone long since

    def comes_again() -> None:
        shared.listened([1])

    node.steps = iter([long_after, comes_again, lambda: seen.append(node.text)])
    shared.listened([1])
    await node.running[0]()
    assert seen == ["text", "text"]


async def test_a_write_is_bounded_and_what_did_not_fit_comes_next() -> None:
    node, tasks = AloneNode(), running(*range(20))
    shared = shared_by(node, tasks)

    def all_grow() -> None:
        for live in tasks.values():
            live.show("x" * SHARED)

    all_grow()
    node.steps = iter([all_grow])
    shared.listened([*tasks])
    await node.running[0]()
    assert len(node.writes) == 2
    assert max(node.writes) < ROWS + SHARED // PIECE + 2
    assert {task for task, *_ in node.rows} == {*tasks}  # growing texts delay no other text


async def test_an_error_in_the_display_does_not_break_the_runtime_and_is_told_once() -> None:
    node, tasks = AloneNode(), running(1)
    shared = shared_by(node, tasks)
    tasks[1].show("text")
    node.errors = [ValueError("of another version"), ValueError("again")]
    node.steps = iter([lambda: None] * 2)
    shared.listened([1])
    await node.running[0]()
    assert node.text == "text"
    (notice,) = node.notices
    assert notice.startswith("not_shared warning: the text of bodies cannot be written for other nodes")
    assert notice.endswith("ValueError: of another version")
