"""Handles of circuit breakers, for applications and operators.

Rules
-----
- A handle is a name, not a state: it shows the breaker's present record.
- A reset with a check runs the check first, on an engine, outside of any turn. If the check does not pass, nothing
  changes. If the runtime closes during the check, the check is stopped, and the breaker is not reset.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import anyio

from ...actors.messages.commands import Command
from ...actors.records.entities import BreakerRecord
from ...actors.spec.model import Hook
from ...actors.spec.validate import SpecificationError, hook_findings
from ...actors.user_code import elements, is_a, plain, shown
from ..calling import Outcome
from ..commands.verbs import verb_of
from ..errors import closed
from .base import Arguments, BreakerVerbs

if TYPE_CHECKING:
    from ...actors.workers.breaker import BreakerActor
    from ..commands.idempotency import ReadEarlierRequest
    from ..host import KernelHost
    from .references import EntityRef
    from .services import Services


class CheckFailed(Exception):  # noqa: N818 - it says what happened
    """A breaker was not reset, since its check did not pass. `output` is the last output of the check."""

    def __init__(self, tool: str, error: str, output: str) -> None:
        printed = "" if not output or output in error else f"; last output: {output}"
        super().__init__(f"the breaker of tool {tool!r} was not reset, its check did not pass: {error}{printed}")
        self.tool = tool
        self.output = output


class BreakerHandle(BreakerVerbs):
    """The circuit breaker of a tool."""

    def __init__(self, services: Services, host: KernelHost, actor: BreakerActor) -> None:
        self._services = services
        self._host = host
        self._actor = actor

    def __repr__(self) -> str:
        return f"<BreakerHandle {self.tool} {self.state}>"

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return self.record.name

    @property
    def ref(self) -> EntityRef:
        """The reference by which people fire events at the breaker."""
        return self._services.reference("breaker", self.tool, self)

    @property
    def record(self) -> BreakerRecord:
        """The breaker's present record."""
        return self._actor.record

    @property
    def state(self) -> str:
        """The breaker's state: closed, open or half_open."""
        return str(self.record.state)

    @property
    def retry_in(self) -> float:
        """Seconds until the breaker lets one task probe the tool; 0 if the breaker is not open."""
        return max(0.0, (self.record.due_at or 0.0) - self._host.now())

    @property
    def parked(self) -> int:
        """How many tasks wait for the breaker."""
        return self._actor.waiting

    async def _say(self, verb: str, said: Arguments, request_id: str | None) -> object:
        check = said.pop("check", None)
        message, key = verb_of("breaker", verb).message("breaker", said), self.record.key
        return await self._services.commands.give(
            partial(Command, key, message),
            type(message).__name__,
            (key, message),
            request_id=request_id,
            first=None if check is None else partial(self._check, _hook(check)),
        )

    async def _check(self, hook: Hook, _: ReadEarlierRequest) -> None:
        if found := hook_findings(hook):
            raise SpecificationError(found, "this check")
        over, outcomes = anyio.Event(), list[Outcome]()

        def ended(outcome: Outcome) -> None:
            outcomes.append(outcome)
            over.set()

        token = self._host.caller.check(hook, self.tool, ended)
        try:
            await over.wait()
        finally:
            self._host.caller.stop(token)
        outcome = outcomes[0]
        if outcome.status in {"cancelled", "abandoned"}:
            raise closed("the runtime closed while the check was running: nothing was reset", None)
        if outcome.error is not None:
            raise CheckFailed(self.tool, outcome.error.message, outcome.output_tail)
        if outcome.value is False:
            raise CheckFailed(self.tool, "it returned False", "")


def _hook(check: Hook | Sequence[str] | str) -> Hook:
    if is_a(check, Hook):
        return cast("Hook", check)
    if is_a(check, str):
        return Hook(command=cast("str", plain(check)), shell=True)  # noqa: S604 - the operator's own words
    words_of = [plain(word) for word in elements(check)] if is_a(check, (list, tuple)) else [None]
    if not all(type(word) is str for word in words_of):
        raise TypeError(f"check is a Hook, a command as a list of texts, or a text for a shell, not {shown(check, 60)}")
    return Hook(command=cast("list[str]", words_of))
