"""`callboard tools`: the limit and breaker of each tool that a workstream has used."""

from __future__ import annotations

from typing import Any

from .acting import AsJson
from .boards import Place
from .options import JOURNAL


def tools(journal: Place = JOURNAL, as_json: AsJson = False) -> None:
    """Show the tools of a journal: their limits, which workstream sets them, and their breakers."""
    from ...actors.records.transition import iso  # noqa: PLC0415
    from ...machines.keywords import number_of  # noqa: PLC0415
    from . import words  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415
    from .status import as_lines, table  # noqa: PLC0415

    with reading(journal) as reader:
        records = reader.breakers()
    if as_json:
        rows: list[dict[str, Any]] = [
            {
                "tool": record.name, "max_parallel": record.limit[0], "limit_by": record.limit[1],
                "breaker": record.shown, "failures": record.failures, "failure_threshold": record.failure_threshold,
                "cooldown": record.cooldown, "success_threshold": record.success_threshold,
                "ignore": list(record.ignore), "breaker_by": record.said_by,
                "not_before": None if record.not_before is None else iso(record.not_before),
            }
            for record in records
        ]  # fmt: skip
        as_lines(rows)
        return
    table(
        ("tool", "at once", "set by", "rests until", "breaker", "opens after", "cools down", "set by"),
        [
            [
                words.one_line(record.id), "no limit" if record.limit[0] is None else f"{record.limit[0]:,}",
                words.one_line(record.limit[1] or ""),
                "" if record.not_before is None else words.due(record.not_before),
                str(record.shown), number_of(record.failure_threshold, "failure"), words.took(record.cooldown),
                words.one_line(record.said_by or ""),
            ]
            for record in records
        ],
    )  # fmt: skip
