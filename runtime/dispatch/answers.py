"""The end of a handled message: an ask gets an answer or an error; another message may become a dead letter."""

from __future__ import annotations

from typing import Any

from ...actors.user_code import shown
from ...actors.users.actor import Refusal
from ...actors.users.dead_letters import DeadLetters, Reason
from ...actors.users.errors import ReceiveFailed
from ...actors.users.ref import Cell, Request

__all__ = ["give_answer", "give_failure"]


def give_answer(letters: DeadLetters, cell: Cell, message: Any, request: Request | None, result: Any) -> None:
    """A receive has returned `result`. A `Refusal` of a message without an asker makes it a dead letter."""
    if type(result) is not Refusal:
        if request is not None:
            request.answer(result)
    elif request is not None:
        request.fail(result.error)
    else:
        letters.add(cell.name, message, Reason.REFUSED, result.error)


def give_failure(letters: DeadLetters, cell: Cell, message: Any, request: Request | None, error: BaseException) -> None:
    """A receive has raised `error`. Its message is a dead letter, and its asker gets `ReceiveFailed`."""
    letters.add(cell.name, message, Reason.FAILED, error)
    if request is not None:
        failure = ReceiveFailed(f"asked {cell.name} {shown(message)}: it raised {shown(error)}")
        failure.__cause__ = error
        request.fail(failure)
