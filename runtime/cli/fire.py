"""`callboard fire ENTITY EVENT`: an event to a `MachineActor` of a runtime, or of a journal that nobody runs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .acting import TIMEOUT, AsJson, By, MaybeReason, RequestId, Timeout, acting
from .boards import Place
from .options import JOURNAL
from .trouble import Trouble

Entity = Annotated[str, typer.Argument(metavar="ENTITY", help="The name that a MachineActor was spawned with.")]
Event = Annotated[str, typer.Argument(metavar="EVENT", help="An event of its machine.")]
Metadata = Annotated[
    list[str] | None,
    typer.Option("--metadata", metavar="KEY=VALUE", help="Kept with the transition. JSON, else text. May be repeated."),
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
    """Fire an event at a machine: it takes it, or says what is possible in its state."""
    from ...actors.schema import did_you_mean  # noqa: PLC0415
    from .machines import A_MACHINE  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415

    act = acting(journal, "fire", request_id=request_id, timeout=timeout, as_json=as_json)
    told = _values(metadata or [])
    with reading(journal) as reader:
        if reader.machine(entity) is None:
            entity = entity.removeprefix(A_MACHINE)
        if reader.machine(entity) is None:
            if reader.job(entity) is not None:
                raise Trouble(f"{entity!r:.80} is a job, and no machine: `cancel`, `pause`, `approve` act on it.")
            names = [record.name for record in reader.machines(limit=10_000)]
            advice = did_you_mean(entity, names) or "`callboard status` lists them."
            raise Trouble(f"There is no machine {entity!r:.80} in this journal; {advice}")
    who = act.who(by)
    said = {} if who is None else {"by": who}
    arguments = {"event": event, "reason": reason, "metadata": said | told}
    act.on("machine", entity, f"machine {entity}", arguments, told=reason or "")


def _values(pairs: list[str]) -> dict[str, Any]:
    import msgspec  # noqa: PLC0415

    told: dict[str, Any] = {}
    for pair in pairs:
        key, found, text = pair.partition("=")
        if not (key and found):
            raise Trouble(f"--metadata takes KEY=VALUE, not {pair!r:.80}.")
        if key in told:
            raise Trouble(f"--metadata gives {key!r:.80} twice: give it once.")
        try:
            told[key] = msgspec.json.decode(text)
        except msgspec.DecodeError:
            told[key] = text
    return told
