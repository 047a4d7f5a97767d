"""Approvals that running bodies wait for: requests to the task's actor, and its decisions back.

Rules
-----
- A body waits until its approval is decided, its attempt is stopped, or it gives up; then the actor is told that the
  body no longer waits.
- A body lends its slot meanwhile, and a flow of the runtime's own loop may be put to sleep, as for any other wait
  (`runtime/flows/`).
- A rule is checked before the actor gets it: one that can never be met is refused at once.
- Requests of bodies in other processes come through `worker_requests.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import anyio

from ...actors.messages.commands import AskApproval, LeaveApproval
from ...actors.messages.inputs import Message
from ...actors.records.task import DurableWait
from ...actors.spec.model import Approval
from ...actors.spec.names import name_problem
from ...actors.user_code import plain_text
from ..engines.waiting import Waiter
from ..functions.registry import Bodies, prepare_approval

if TYPE_CHECKING:
    from ...actors.kernel.transaction import ApprovalDecided
    from ..engines.connection import Connection
    from ..flows.flows import Flows


class ApprovalWaiters:
    """The bodies of one runtime that wait for approvals. Made on its loop."""

    def __init__(
        self,
        tell: Callable[[Message], None],
        bodies: Bodies,
        flows: Flows,
        *,
        durable: bool,
        folder_of: Callable[[int], str | None] = lambda _: None,
    ) -> None:
        self._tell = tell
        self._bodies = bodies
        self._flows = flows
        self._durable = durable
        self._folder_of = folder_of  # the specification's folder, by the attempt's token
        self._rules: dict[tuple[int, str], list[Approval]] = {}  # rules whose functions the registry holds
        self._waiting: dict[tuple[int, str], list[Waiter]] = {}

    async def decision(self, token: int, name: str, rule: Approval, connection: Connection) -> Waiter:
        """Wait for the decision, on the runtime's loop. Raises ValueError for an invalid name or rule."""
        name, ready = self._ready(token, name, rule)
        self._flows.ready(token, connection)
        await self._flows.stop_here(token)
        return await self._wait(token, name, ready)

    def decision_blocking(self, token: int, name: str, rule: Approval, connection: Connection) -> Waiter:
        """`decision` for a body in a thread. Also raises TaskCancelled."""
        return self._flows.blocking(lambda: self.decision(token, name, rule, connection), connection)

    async def decision_away(
        self, token: int, name: str, rule: Approval, lending: Callable[[int], object], alone: bool
    ) -> Waiter:
        """`decision` for a body in another process. lending, alone: as for `Flows.wait`."""
        name, ready = self._ready(token, name, rule)
        return await self._wait(token, name, ready, lending, alone=alone)

    async def _wait(
        self,
        token: int,
        name: str,
        rule: Approval,
        lending: Callable[[int], object] | None = None,
        *,
        alone: bool = True,
    ) -> Waiter:
        asked = list[Waiter]()

        def listen(wake: Callable[[], object]) -> Callable[[], object]:
            waiter = Waiter(token, name, _Waking(wake))
            asked.append(waiter)
            self._begin(waiter, rule)
            return partial(self._end, waiter)

        if self._is_decided(token, name):
            over = anyio.Event()
            leave = listen(over.set)
            try:
                await over.wait()
            finally:
                leave()
        else:
            await self._flows.wait(DurableWait(None, "approval", name), token, listen, lending, alone=alone)
        return asked[0]

    def _is_decided(self, token: int, name: str) -> bool:
        """Whether the decision is known: then it comes at once, and no slot is lent."""
        task = self._flows.task_of(token)
        actor = None if task is None or task.asks is None else task.asks.actors.get(name)
        return actor is not None and task is not None and actor.ended and actor.record.rounds == task.record.rounds

    def _ready(self, token: int, name: str, rule: Approval) -> tuple[str, Approval]:
        name = plain_text(name, "the name of an approval")
        if problem := name_problem(name):
            raise ValueError(f"the approval's name {name!r:.80} {problem}")
        return name, prepare_approval(rule, self._bodies, durable=self._durable, folder=self._folder_of(token))

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


class _Waking:
    """Takes the place of the event of a waiter: `set` wakes the flow that waits, in memory or not."""

    __slots__ = ("_wake",)

    def __init__(self, wake: Callable[[], object]) -> None:
        self._wake = wake

    def set(self) -> None:
        self._wake()
