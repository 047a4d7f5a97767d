"""Prints the findings of the auditor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .terminal import echo

if TYPE_CHECKING:
    from ...machines.audit.auditor import AuditFinding

_MOST = 200  # findings printed one by one


def report(findings: Sequence[AuditFinding]) -> str:
    """Print the findings, and return a short summary."""
    from ...machines.keywords import number_of  # noqa: PLC0415

    for finding in findings[:_MOST]:
        place = [
            f"line {finding.line}" if finding.line is not None else "",
            f"byte {finding.offset}" if finding.offset is not None else "",
            f"transition {finding.seq}" if finding.seq is not None else "",
        ]
        where = ", ".join(part for part in place if part)
        entity = f" {finding.entity_id}" if finding.entity_id else ""
        echo(f"{finding.severity}: {where + ': ' if where else ''}{finding.kind}:{entity} {finding.text}")
    if len(findings) > _MOST:
        echo(f"… and {len(findings) - _MOST:,} more")
    errors = sum(finding.severity == "error" for finding in findings)
    if not findings:
        return "consistent"
    return f"{number_of(errors, 'error')}, {number_of(len(findings) - errors, 'warning')}"
