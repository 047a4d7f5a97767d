"""The mailbox of a job: who is woken first, also after an undone turn."""

from __future__ import annotations

from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from callboard.actors.kernel.mailbox import Mailbox
from callboard.actors.messages.commands import Reply
from callboard.actors.messages.inputs import WaitOver


class Kernel:
    """The parts of the kernel that a mailbox uses: it notes which bodies were woken."""

    def __init__(self) -> None:
        self.number = count(1_000).__next__
        self.at = 1.0
        self.calls: dict[int, Any] = {}
        self.turn = SimpleNamespace(booked=[], extra=[])
        self.entities: dict[int, Any] = {}
        self.woken: list[str] = []

    def rests(self, name: str, token: int) -> Any:
        """A task whose attempt waits without a body."""
        record = SimpleNamespace(name=name, key=token + 1, token=token)
        task = self.entities[record.key] = SimpleNamespace(record=record)
        return task

    def effect(self, effect: Any) -> None:
        effect.reply.answer(None, None)

    def send(self, task: Any, message: object) -> None:
        assert isinstance(message, WaitOver)
        self.woken.append(task.record.name)


@pytest.mark.parametrize("undone", [False, True])
def test_whoever_has_waited_longest_is_woken_first_whether_it_has_a_body_or_not(undone: bool) -> None:
    kernel = Kernel()
    mailbox = Mailbox(kernel)  # type: ignore[arg-type]
    mailbox.rest("go", kernel.rests("first", 10))
    mailbox.wait("go", "second", 1, Reply(lambda *_: kernel.woken.append("second")))
    mailbox.rest("go", kernel.rests("third", 20))
    if undone:
        mailbox.sort()
    sent: Any = SimpleNamespace(name="go", value=1, by=None)
    for _ in range(3):
        mailbox.put(SimpleNamespace(key=1, id="j", first=1), None, sent)  # type: ignore[arg-type]
    assert kernel.woken == ["first", "second", "third"]
