"""`callboard resume`: go on with every unfinished job of a journal."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import typer

from .options import JOURNAL, AsJson, Journal, JsonLog, Plain

if TYPE_CHECKING:
    from ...actors.spec import EngineName, Worker
    from ..handles import JobHandle
    from ..journal.contract import Reader
    from ..runtime import Runtime


def resume(journal: Journal = JOURNAL, jsonl: JsonLog = None, as_json: AsJson = False, plain: Plain = False) -> None:
    """Go on with the unfinished jobs of a journal, with the workers it had."""
    from ..runtime import Runtime  # noqa: PLC0415 - heavy
    from .functions import refuse_unless_found  # noqa: PLC0415
    from .reading import LIVING, reading, reading_if_used  # noqa: PLC0415
    from .session import see_through  # noqa: PLC0415

    with reading_if_used(journal) if journal.is_file() else reading(journal) as reader:
        unfinished = reader.jobs(states=LIVING, limit=1) if reader is not None else []
        workers = _workers(reader) if reader is not None else None
        if reader is not None and unfinished:
            refuse_unless_found(reader, journal)
    if not unfinished:
        if not as_json:
            typer.echo(f"Nothing is unfinished in {journal}.")
        return

    async def begin(runtime: Runtime) -> list[JobHandle]:
        return list(runtime.recovered)

    def opened() -> Runtime:
        return Runtime(journal, workers=workers, jsonl=jsonl)

    raise typer.Exit(see_through(opened, begin, as_json=as_json, plain=plain))


def _workers(reader: Reader) -> list[Worker] | None:
    """The workers of the runtime that had the journal last: those that started together, the latest."""
    from ...actors.spec import Worker  # noqa: PLC0415

    records = reader.workers()
    if not records:
        return None
    latest = max(record.created_at for record in records)
    return [
        Worker(
            record.name,
            engine=cast("EngineName", record.engine),
            capacity=record.capacity,
            capabilities=record.capabilities,
            recycle_after=record.recycle_after,
        )
        for record in records
        if record.created_at == latest
    ]
