"""`callboard fire ENTITY EVENT`: fire an event at an actor.

Rules:
- The actor is a `MachineActor`, or one of the runtime's own: a job, a task, a worker, the breaker of a tool. If several
  have the name, the first in this order is taken; "job:", "worker:" or "breaker:" before the name decides.
- The runtime's own actors take the events that people may fire (`machines/adapt/people.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from .acting import TIMEOUT, AsJson, By, MaybeReason, RequestId, Timeout, acting
from .boards import Place
from .command_errors import CommandError
from .hints import hint
from .options import JOURNAL

if TYPE_CHECKING:
    from ..journal.contract import JournalQueries
    from .control import Named

Entity = Annotated[
    str,
    typer.Argument(metavar="ENTITY", help="A MachineActor's name; or JOB, JOB/TASK, a worker's name, a tool's name."),
]
Event = Annotated[str, typer.Argument(metavar="EVENT", help="An event of its machine that people may fire.")]
Metadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="KEY=VALUE", help="Kept with the transition. JSON, or text. May be repeated."),
]


def fire(
    entity: Entity,
    event: Event,
    *,
    metadata: Metadata = None,
    journal: Place = JOURNAL,
    reason: MaybeReason = None,
    by: By = None,
    request_id: RequestId = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Fire an event at a machine, job, task, worker or breaker. If it is refused, the possible events are shown."""
    from .reading import reading  # noqa: PLC0415

    act = acting(journal, "fire", request_id=request_id, timeout=timeout, as_json=as_json)
    options = _values(metadata or [])
    with reading(journal) as reader:
        kind, name, shown = _meant(reader, entity)
    who = act.who(by)
    if kind == "machine":
        given = {} if who is None else {"by": who}
        arguments: dict[str, Any] = {"event": event, "reason": reason, "metadata": given | options}
    elif options:
        raise CommandError(f"A {kind} keeps no metadata with an event. Use --reason instead.")
    else:
        arguments = {"event": event, "reason": reason, "by": who}
    act.on(kind, name, shown, arguments, detail=reason or "")


def _meant(reader: JournalQueries, entity: str) -> Named:
    """Find the actor of an event. Raises CommandError if none has the name."""
    from ...machines.keywords import did_you_mean  # noqa: PLC0415
    from .control import breaker_named, job_or_task, worker_named  # noqa: PLC0415
    from .machines import A_MACHINE  # noqa: PLC0415

    for name in (entity, entity.removeprefix(A_MACHINE)):
        if reader.machine(name) is not None:
            return "machine", name, f"machine {name}"
    kind, colon, name = entity.partition(":")
    if colon and kind in {"worker", "breaker"}:
        return (worker_named if kind == "worker" else breaker_named)(reader, "fire", name)
    if "/" in entity or "@" in entity or colon or reader.job(entity) is not None:
        return job_or_task(reader, "fire", entity)
    if any(entity in {one.name, one.id, one.id.partition("#")[0]} for one in reader.workers()):
        return worker_named(reader, "fire", entity)
    if any(entity in {one.name, one.id} for one in reader.breakers()):
        return breaker_named(reader, "fire", entity)
    names = [record.name for record in reader.machines(limit=10_000)]
    advice = did_you_mean(entity, names) or f"{hint('status')} lists them."
    raise CommandError(f"There is no machine {entity!r:.80} in this journal; {advice}")


def _values(pairs: list[str]) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415

    values: dict[str, Any] = {}
    for pair in pairs:
        key, found, text = pair.partition("=")
        if not (key and found):
            raise CommandError(f"--metadata takes KEY=VALUE, not {pair!r:.80}.")
        if key in values:
            raise CommandError(f"--metadata gives {key!r:.80} twice: give it once.")
        try:
            values[key] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            values[key] = text
    return values
