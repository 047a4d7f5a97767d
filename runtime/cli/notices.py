"""`callboard notices [ABOUT]`: the notices that a journal keeps, of problems without a transition."""

from __future__ import annotations

import time
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .boards import Place
from .hints import hint
from .options import JOURNAL, AsJson
from .terminal import echo, echo_json

if TYPE_CHECKING:
    from ...actors.messages.notices import NoticeRecord
    from ..journal.contract import JournalQueries

About = Annotated[
    str | None,
    typer.Argument(metavar="[ABOUT]", help="The id of a job or other entity, or an actor's name.", show_default=False),
]
Since = Annotated[str, typer.Option("--since", metavar="SPAN", help="How far back: 90s, 15m, 2h, 30d.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="How many at most.")]
Traces = Annotated[bool, typer.Option("--traces", help="Show their tracebacks.")]
LATELY = 86_400.0
"""Seconds for which `status` counts notices."""


def notices(
    about: About = None, *, since: Since = "30d", limit: Limit = 100, traces: Traces = False, journal: Place = JOURNAL,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Show problems that no transition reports: errors in actors, hooks, guards and other code."""
    from .reading import reading  # noqa: PLC0415
    from .spans import span  # noqa: PLC0415

    begin = max(time.time() - span(since), 0.0)
    with reading(journal) as reader:
        found = reader.notices(about=about, since=begin, limit=limit)
    for one in reversed(found):
        if as_json:
            echo_json(json_of(one))
            continue
        for line in _lines(one, traces=traces):
            echo(line)
    if not found and not as_json:
        echo(f"no notices{'' if about is None else f' about {about}'} within {since}")


def json_of(record: NoticeRecord) -> dict[str, Any]:
    """Describe a notice for JSON."""
    import msgspec  # noqa: PLC0415

    from ...actors.records.transition import iso  # noqa: PLC0415

    plain = msgspec.structs.asdict(record)
    del plain["key"]
    return {**plain, "at": iso(record.at), "first_at": iso(record.first_at)}


def lately(reader: JournalQueries, about: str | None = None) -> str | None:
    """Count the notices of the last day, or about a job, for `status`; None if there are none."""
    from ...machines.keywords import number_of  # noqa: PLC0415

    since = 0.0 if about is not None else max(time.time() - LATELY, 0.0)
    found = reader.notices(about=about, since=since, limit=1_000)
    if not found:
        return None
    bad = sum(one.count for one in found if one.severity != "warning")
    mild = sum(one.count for one in found if one.severity == "warning")
    counts = ((bad, "error"), (mild, "warning"))
    words = " and ".join(number_of(count, word) for count, word in counts if count)
    if about is None:
        return f"{words} in notices of the last day: see {hint('notices')}"
    return f"{words} in notices: see {hint(f'notices {quote(about)}')}"


def _lines(record: NoticeRecord, *, traces: bool) -> list[str]:
    from . import words  # noqa: PLC0415

    times = "" if record.count == 1 else f" ({record.count:,} times since {words.moment(record.first_at)})"
    whom = "several" if record.others else record.entity_id or record.kind
    text = words.one_line(record.text, 500)
    head = f"{words.moment(record.at)}  {record.severity:<8}  {record.event}  {whom}{times}: {text}"
    trace = (record.traceback or "").splitlines() if traces else []
    return [head, *(f"    {line}" for line in trace)]
