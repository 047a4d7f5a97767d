"""Sends commands to entities that other nodes run.

A command goes through the inbox, with a key: so it can be sent again if it is not known whether it arrived. The owner
of its target answers it when it is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ..cluster.delays import Delays
from ..journal.contract import InboxRow
from .idempotency import made_key
from .wire_errors import CommandAnswer, error_of

if TYPE_CHECKING:
    from ..cluster.node_context import NodeContext

FIRST_ANSWER = 0.005
"""Seconds until the first look for an answer."""


async def send(
    node: NodeContext, kind: str, target: str, verb: str, arguments: dict[str, Any], *, request_id: str | None
) -> CommandAnswer:
    """Send a command to an entity on another node, and wait for its durable result.

    Raises that node's refusal, and RuntimeClosed.
    """
    await node.host.gate()
    given = {name: value for name, value in arguments.items() if value is not None}
    row = InboxRow(verb, kind, target, request_id or made_key(), given, node.host.now())
    number = await node.patiently(node.cluster.send, row)
    delays = Delays(FIRST_ANSWER)
    while (text := await node.patiently(node.cluster.answer, number)) is None:
        await node.pause(delays())
    answered = msgspec.json.decode(text, type=CommandAnswer)
    if (error := error_of(answered)) is not None:
        raise error
    return answered
