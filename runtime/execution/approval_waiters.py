"""Approvals that running bodies wait for: requests to the task's actor, and its decisions back.

Rules
-----
- A body waits only here: on the loop by an event of the loop, in a thread by an event of `threading`. It waits until
  its approval is decided, its attempt is stopped, or it gives up; then the actor learns that it waits no longer.
- A rule is checked before the actor gets it: one that can never be met is refused at once.
- Requests of bodies in other processes come through `worker_requests.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from ...actors.messages.commands import AskApproval, LeaveApproval
from ...actors.messages.inputs import Message
from ...actors.spec.model import Approval
from ...actors.spec.names import name_problem
from ...actors.user_code import plain_text
from ..dispatch.loop_bridge import LoopBridge
from ..engines.waiting import Waiter
from ..functions.registry import Bodies, prepare_approval

if TYPE_CHECKING:
    from ...actors.kernel.transaction import ApprovalDecided


class ApprovalWaiters:
    """The bodies of one runtime that wait for approvals. Made on its loop."""

    def __init__(
        self,
        tell: Callable[[Message], None],
        bodies: Bodies,
        *,
        durable: bool,
        folder_of: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self._tell = tell
        self._bodies = bodies
        self._durable = durable
        self._folder_of = folder_of  # the specification's folder, by the attempt's token
        self._rules: dict[tuple[int, str], list[Approval]] = {}  # rules whose functions the registry holds
        self._line = LoopBridge()
        self._waiting: dict[tuple[int, str], list[Waiter]] = {}

    def ask(self, token: int, name: str, rule: Approval, *, thread: bool) -> Waiter:
        """Begin to wait. Raises ValueError for an invalid name or rule. For a thread's body, call it in that thread."""
        name = plain_text(name, "the name of an approval")
        if problem := name_problem(name):
            raise ValueError(f"the approval's name {name!r:.80} {problem}")
        ready = prepare_approval(rule, self._bodies, durable=self._durable, folder=self._folder_of(token))
        if thread:
            waiter = Waiter(token, name, threading.Event())
            self._line.post(self._begin, waiter, ready)
        else:
            waiter = Waiter(token, name, anyio.Event())
            self._begin(waiter, ready)
        return waiter

    def leave(self, waiter: Waiter, *, thread: bool) -> None:
        """Remove a body that waits no longer."""
        if thread:
            self._line.post(self._end, waiter)
        else:
            self._end(waiter)

    def answer(self, effect: ApprovalDecided) -> None:
        """Wake the bodies that wait for an approval that was decided."""
        self._release_rules((effect.token, effect.name))
        for waiter in self._waiting.pop((effect.token, effect.name), ()):
            waiter.record = effect.record
            waiter.over.set()

    def _begin(self, waiter: Waiter, rule: Approval) -> None:
        self._waiting.setdefault((waiter.token, waiter.name), []).append(waiter)
        self._rules.setdefault((waiter.token, waiter.name), []).append(rule)
        self._tell(AskApproval(waiter.token, waiter.name, rule))

    def _end(self, waiter: Waiter) -> None:
        key = (waiter.token, waiter.name)
        others = [one for one in self._waiting.get(key, ()) if one is not waiter]
        if others:
            self._waiting[key] = others
        elif self._waiting.pop(key, None):
            self._release_rules(key)
            self._tell(LeaveApproval(waiter.token, waiter.name))

    def _release_rules(self, key: tuple[int, str]) -> None:
        for rule in self._rules.pop(key, ()):
            self._bodies.release_rule(rule)
