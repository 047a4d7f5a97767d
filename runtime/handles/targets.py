"""Finds the handles that commands of other processes name, and executes the commands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..commands.verbs import MovedAway, check_row

if TYPE_CHECKING:
    from ..journal.contract import InboxRow
    from .services import Services


async def perform(services: Services, row: InboxRow) -> None:
    """Execute a row of the inbox.

    Raises the refusal of the verb, LookupError if there is no such target, and MovedAway if another node has it.
    """
    verb = check_row(row)
    target = await target_of(services, row.kind, row.target)
    if getattr(target, "elsewhere", False):
        raise MovedAway(row.target)
    if row.verb == "fire" and row.kind != "machine":  # the handle of a machine is its reference
        target = target.ref
    await getattr(target, verb.method)(**row.arguments, request_id=row.request_id)


async def target_of(services: Services, kind: str, name: str) -> Any:
    """The handle of an entity. A task's name begins with its job's id. Raises LookupError."""
    if kind == "task":
        job, _, task = name.rpartition("/")  # the id of a child job begins with its parent's id
        return (await services.jobs.find(job)).task(task)
    if kind == "worker":
        return services.former_worker(name)
    find: dict[str, Callable[[str], Awaitable[Any]]] = {
        "job": services.jobs.find, "breaker": services.breaker_of, "machine": services.machine_ref
    }  # fmt: skip
    return await find[kind](name)
