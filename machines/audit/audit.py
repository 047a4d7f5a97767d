"""Auditing a log of transitions: the kinds of findings, and how lines are read.

The `Auditor` compares the lines with the machines.

Rules
-----
- Pure: the caller passes the lines in, and gets findings back. An empty list means a clean log.
- Streaming: memory grows with the entities, not with the lines.
- A crash leaves a last line that is cut off (warning); damage elsewhere is an error.
- A file that is no log is reported once: if none of the first few lines is a transition, nothing more is read.
- Several logs are those of the nodes of one journal. They are merged in the order of their numbers.
- A log of an archive begins with a line that says so, and holds the archive's jobs only.
- A log whose first line has exactly the eight fields of document 001's event schema (`BriefEvent`) is a log of that
  document: it is compared with the `orchestration` lifecycle, and with the invariants as far as its lines show them.

Findings
--------
==================== ======== ==========================================================================
kind                 severity meaning
==================== ======== ==========================================================================
torn                 warning  the last line is cut off; `offset` is where it begins
damaged              error    a line that is not JSON
bad_schema           error    a line that lacks a field, or holds one of another type or form
no_log               error    none of the first lines is a transition: nothing more was read
unknown_key          warning  a line has a key that no transition has; reported once for each key
gap, repeat          error    a number of the log, or of an entity, is missing or comes twice
starts_late          warning  the log does not begin at its first line: earlier states are assumed. In a log of
                              document 001, which has no numbers: an entity's first line leaves another state
                              than the initial one; reported for each entity
part                 warning  another node ran a job (machine, worker) before, and its log is not here, or lacks
                              its last lines; reported once
time_backwards       warning  a line is older than the one before it
unknown_transition   error    the machine has no such row
does_not_follow      error    the line starts from another state than its entity's
after_end            error    the line leaves a terminal state, by a row that is not forced
not_created          error    the entity's first line is not its creation
created_twice        error    the entity exists already (a closed breaker may be created again)
wrong_start          error    the entity was created in a state other than its machine's initial one
unknown_lifecycle    warning  the lifecycle is not known: its entities are not checked; reported once
other_owner          error    the line names another job or workstream than its entity's id or first line
wrong_severity       warning  the line's severity is not the row's
not_derived          warning  at the end of the log, a workstream is in a state that its tasks do not allow
==================== ======== ==========================================================================

Broken invariants, all errors: `alive_in_ended`, `completed_with_bad`, `derived_otherwise`, `dependencies_unmet`,
`started_out_of_turn`, `too_many_attempts`, `attempt_backwards`, `no_attempt`, `other_attempt`, `no_worker`,
`other_worker`, `over_capacity`, `wrong_assignment`, `two_probes`; see `invariants`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import merge
from typing import Any, TypeAlias

import msgspec

from ..adapt.lifecycle import Lifecycle
from ..builtin.table import MACHINES
from ..machine import Machine
from .auditor import UNREADABLE, AuditFinding, Auditor, MachineOf
from .log import BriefEvent, TransitionEvent


class _Exactly(TransitionEvent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transition without unknown keys."""


class _ExactlyBrief(BriefEvent, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A transition with the eight fields of document 001, without unknown keys."""


_BRIEF = frozenset(BriefEvent.__struct_fields__)


def audit(
    entries: Iterable[TransitionEvent | Mapping[str, Any]],  # values from a database or a JSON document
    machines: Mapping[str, Machine] = MACHINES,
    *,
    lifecycles: Iterable[Lifecycle] = (),
    machine_of: MachineOf | None = None,
) -> list[AuditFinding]:
    """Return the findings about a log of transitions. The key of `machines` is the kind of the entity.

    lifecycles: lifecycles that entities may run by, besides the published ones. machine_of: finds the machine of an
    entity of another kind, from its first line.
    """
    auditor = Auditor(machines, lifecycles=lifecycles, machine_of=machine_of)
    for number, entry in enumerate(entries, start=1):
        auditor.at(number)
        if isinstance(entry, TransitionEvent):
            auditor.take(entry)
            continue
        if number == 1 and frozenset(entry) == _BRIEF:
            auditor.begin_brief()
        try:
            auditor.take(_converted(auditor, entry))
        except msgspec.ValidationError as error:
            auditor.find("bad_schema", str(error))
    return auditor.finish()


def audit_lines(
    lines: Iterable[bytes],
    machines: Mapping[str, Machine] = MACHINES,
    *,
    lifecycles: Iterable[Lifecycle] = (),
    machine_of: MachineOf | None = None,
) -> list[AuditFinding]:
    """Return the findings about a JSONL log. `lines` keep their line ends, as those of a binary file do."""
    auditor = Auditor(machines, lifecycles=lifecycles, machine_of=machine_of, logs=1)
    decode: _Decode = msgspec.json.Decoder(_Exactly).decode
    offset = unreadable = 0
    for number, (line, last) in enumerate(_with_last(lines), start=1):
        auditor.at(number, offset)
        offset += len(line)
        if number == 1 and (promised := lines_of_archive(line)) is not None:
            auditor.begin_archive(promised)
            continue
        if number == 1 and _is_brief(line):
            auditor.begin_brief()
            decode = msgspec.json.Decoder(_ExactlyBrief).decode
        event = _event(auditor, decode, line, last=last)
        if event is not None:
            auditor.take(event)
            continue
        unreadable += 1
        if unreadable == number == UNREADABLE:
            return [auditor.no_log()]
    return auditor.finish()


def audit_logs(
    logs: Mapping[str, Iterable[bytes]],
    machines: Mapping[str, Machine] = MACHINES,
    *,
    lifecycles: Iterable[Lifecycle] = (),
    machine_of: MachineOf | None = None,
) -> list[AuditFinding]:
    """Return the findings about the logs of several nodes of one journal. Each begins with its log's name."""
    auditor = Auditor(machines, lifecycles=lifecycles, machine_of=machine_of, logs=len(logs))
    read = [_numbered(auditor, name, lines) for name, lines in logs.items()]
    for _, number, offset, name, event in merge(*read, key=_seq_of):
        auditor.at(number, offset, name)
        auditor.take(event)
    return auditor.finish()


_Numbered: TypeAlias = tuple[int, int, int, str, TransitionEvent]


def _seq_of(one: _Numbered) -> int:
    return one[0]


def _numbered(auditor: Auditor, name: str, lines: Iterable[bytes]) -> Iterator[_Numbered]:
    """The transitions of one of several logs, each with its number and position. Reports other lines."""
    decode = msgspec.json.Decoder(_Exactly).decode
    offset = unreadable = 0
    for number, (line, last) in enumerate(_with_last(lines), start=1):
        auditor.at(number, offset, name)
        if number == 1 and lines_of_archive(line) is not None:
            auditor.find("no_log", "this is an archive, which holds only jobs that have ended: audit it alone")
            return
        if number == 1 and _is_brief(line):
            auditor.find(
                "no_log", "its lines have no numbers (`seq`), so it cannot be merged with other logs: audit it alone"
            )
            return
        event = _event(auditor, decode, line, last=last)
        if isinstance(event, TransitionEvent):
            yield event.seq, number, offset, name, event
        else:
            unreadable += 1
            if unreadable == number == UNREADABLE:
                auditor.find("no_log", f"none of its first {UNREADABLE} lines is a transition")
                return
        offset += len(line)


_Decode: TypeAlias = Callable[[bytes], TransitionEvent | BriefEvent]


def _event(auditor: Auditor, decode: _Decode, line: bytes, *, last: bool) -> TransitionEvent | BriefEvent | None:
    """The transition of a line. None, and a finding, if the line is no transition."""
    try:
        return decode(line)
    except msgspec.ValidationError as error:
        return _with_more(auditor, line, error)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if last and not line.endswith(b"\n"):
            auditor.find("torn", f"the last line is cut off after {len(line)} bytes")
        else:
            auditor.find("damaged", f"not a line of JSON: {error}")
        return None


def _with_more(auditor: Auditor, line: bytes, error: msgspec.ValidationError) -> TransitionEvent | BriefEvent | None:
    """The transition of a line that has more keys; None if the line is no transition."""
    event: TransitionEvent | BriefEvent
    try:
        if auditor.brief:
            event = msgspec.json.decode(line, type=BriefEvent)
        else:
            event = msgspec.json.decode(line, type=TransitionEvent)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as other:
        auditor.find("bad_schema", str(other))
        return None
    auditor.find_key(str(error))
    return event


def _is_brief(line: bytes) -> bool:
    """Whether a line has exactly the fields of document 001's event schema."""
    try:
        return msgspec.json.decode(line, type=dict[str, msgspec.Raw]).keys() == _BRIEF
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _converted(auditor: Auditor, entry: Mapping[str, Any]) -> TransitionEvent | BriefEvent:
    event: TransitionEvent | BriefEvent
    try:
        event = msgspec.convert(entry, _ExactlyBrief) if auditor.brief else msgspec.convert(entry, _Exactly)
    except msgspec.ValidationError as error:
        event = msgspec.convert(entry, BriefEvent) if auditor.brief else msgspec.convert(entry, TransitionEvent)
        auditor.find_key(str(error))
    return event


class _Archive(msgspec.Struct):
    """The fields that are read from the first line of an archive."""

    transitions: int


class _First(msgspec.Struct):
    archive: _Archive


def lines_of_archive(line: bytes) -> int | None:
    """How many transitions follow the first line of an archive; None if it is no such line."""
    if not line.startswith(b'{"archive":'):
        return None
    try:
        return msgspec.json.decode(line, type=_First).archive.transitions
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _with_last(lines: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
    """Each line, and whether it is the last one."""
    waiting: bytes | None = None
    for line in lines:
        if waiting is not None:
            yield waiting, False
        waiting = line
    if waiting is not None:
        yield waiting, True
