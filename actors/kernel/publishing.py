"""The transitions that are published for entities with a lifecycle that is not the runtime's own.

Rules
-----
- The actors of such entities act by phase, as all others. The journaled, logged, emitted, counted and audited rows are
  those of their lifecycle (`machines/adapt/refinement.py`), numbered without a gap.
- Each row of one step has its reason; of a task it has the metadata, too. For other entities the last row has them.
- An end that the lifecycle has no word for is reported as the nearest one that it has. The row's metadata has the real
  phase (`ended_as`): so a skipped task is not mistaken for a cancelled one. If a failed entity is reported as
  cancelled, the reason says so: its event may be called "user_cancelled".
- A row that the runtime's own machine does not have (a worker that is shown as working before it has a task,
  or as terminated after it has ended otherwise) is taken alone, when a person asks for it.
- A decision is never lost: if the lifecycle has no row for it (an approval without a hold, a skip without a skipped
  state), it is kept, and the next row of the entity reports it in `decided`. If the entity ended without a row, its
  parent's next row reports that, with the person and the reason, whatever lifecycle the parent has. Of very many
  automatic ends, the first are reported so, and the others counted (`decided_more`).
- An entity that ends, and rests because its lifecycle has no way to an end, gives a notice.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace

from ...machines.phases import Phase
from ..records.base import Published, Record, UnreportedDecision
from ..records.transition import PublishedTransition, iso
from . import observing

_MOST_UNTOLD = 100
"""The most decisions and ends without a row that one row reports; further ones are counted."""

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...machines import Transition
    from ..spec.lifecycles import Lifecycles
    from .entity import Entity


def publish(
    entity: Entity[Any], before: Record, row: Transition, payload: object, metadata: dict[str, Any] | None
) -> None:
    """Publish a row that the entity has taken, in the words of its lifecycle. before: the record before the row."""
    record = entity.record
    published: Published = record.published
    refined = entity.kernel.lifecycles.refinement(published.lifecycle, record.kind)
    rows = refined.follow(published.state, row, record, payload, final=entity.is_final)
    last = rows[-1] if rows else None
    if not rows and metadata is not None and "by" in metadata:
        _keep(
            entity,
            [UnreportedDecision(event=str(row.event), by=metadata["by"], at=entity.kernel.at, reason=record.reason)],
        )
    for one in rows:
        if observing.observe_transition is not None:
            observing.observe_transition(refined.machine, one)
        untold = published.untold
        published = replace(
            published, state=str(one.target), previous=str(one.source), seq=published.seq + 1, untold=()
        )
        entity.record = record if one is last else before  # an attempt begins with the last row
        facts = metadata if one is last or record.kind == "task" else None  # a worker's data follow its last row
        facts = with_untold(facts, untold)
        means, reason = refined.phases[one.target], record.reason
        if one is last and entity.ended and means != record.state:
            facts = {**(facts or {}), "ended_as": str(record.state)}
            if (means, record.state) == (Phase.CANCELLED, Phase.FAILED):
                reason = f"it failed, and nobody cancelled it: {reason}"
            means = record.state if refined.machine.is_terminal(one.target) else means
        described = (str(one.event), one.severity, reason, facts)
        _note(entity, published, (one.source, one.target), (refined.phases[one.source], means), *described)
    if rows:
        entity.record = replace(record, published=published)
    elif entity.ended:
        _hand_over(entity, str(row.event))
    if entity.ended and not refined.machine.is_terminal(published.state):
        text = (
            f"{record.id} has ended ({record.state}), and rests in {published.state}: {published.lifecycle} knows no "
            "way from there to an end without starting it"
        )
        entity.kernel.notice("rests", "info", text, entity, state=published.state, phase=str(record.state))


def published_row(entity: Entity[Any], event: str) -> Transition | None:
    """The row that only the entity's lifecycle has for an own event. The entity's phase does not change."""
    published: Published | None = entity.record.published
    if published is None:
        return None
    refined = entity.kernel.lifecycles.refinement(published.lifecycle, entity.record.kind)
    rows = refined.machine.table[published.state]
    found = (row for word in refined.lifecycle.events.get(event, ()) for row in rows.get(word, ()))
    return next((row for row in found if row.guard is None), None)


def publish_row(entity: Entity[Any], row: Transition, reason: str, metadata: dict[str, Any] | None) -> None:
    """Take a row that only the entity's lifecycle has."""
    published: Published = entity.record.published
    refined = entity.kernel.lifecycles.refinement(published.lifecycle, entity.record.kind)
    if observing.observe_transition is not None:
        observing.observe_transition(refined.machine, row)
    metadata = with_untold(metadata, published.untold)
    published = replace(published, state=str(row.target), previous=str(row.source), seq=published.seq + 1, untold=())
    entity.change(published=published, updated_at=entity.kernel.at, reason=reason)
    phases = (refined.phases[row.source], refined.phases[row.target])
    _note(entity, published, (row.source, row.target), phases, str(row.event), row.severity, reason, metadata)


def _keep(entity: Entity[Any], decided: Sequence[UnreportedDecision]) -> None:
    """Keep decisions for the next row. Beyond the limit, automatic ones are dropped first, then the oldest.

    Dropped ones are counted.
    """
    record = entity.record
    published: Published | None = record.published
    kept = record.untold if published is None else published.untold
    untold = _with_most(kept, decided)
    if published is None:
        entity.change(untold=untold)
    else:
        entity.change(published=replace(published, untold=untold))


def _with_most(
    kept: Sequence[UnreportedDecision], more: Sequence[UnreportedDecision]
) -> tuple[UnreportedDecision, ...]:
    """The decisions that one row reports, in order. The last one has the number of those left out."""
    left_out = sum(one.left_out for one in more)
    if len(kept) >= _MOST_UNTOLD and all(one.by is None for one in more):  # most ends of a large run take this path
        return (*kept[:-1], replace(kept[-1], left_out=kept[-1].left_out + left_out + len(more)))
    left_out += sum(one.left_out for one in kept)
    found = [replace(one, left_out=0) if one.left_out else one for one in (*kept, *more)]
    by_people = sum(one.by is not None for one in found)
    oldest, by_nobody = max(0, by_people - _MOST_UNTOLD), max(0, _MOST_UNTOLD - by_people)
    decisions: list[UnreportedDecision] = []
    for one in found:
        if one.by is not None:
            oldest -= 1
            goes = oldest >= 0
        else:
            by_nobody -= 1
            goes = by_nobody < 0
        left_out += goes
        if not goes:
            decisions.append(one)
    if left_out:
        decisions[-1] = replace(decisions[-1], left_out=left_out)
    return tuple(decisions)


def _hand_over(entity: Entity[Any], event: str) -> None:
    """Pass an end without a row, and its decisions, to the entity's parent."""
    record, outer = entity.record, entity.within
    if outer is None:
        return
    published: Published = record.published
    decided = list(published.untold)
    last = decided[-1] if decided else None
    if last is not None and (last.event, last.at) == (event, entity.kernel.at) and last.entity_id is None:
        decided[-1] = replace(last, ended_as=str(record.state))
    else:
        decided.append(
            UnreportedDecision(event=event, at=entity.kernel.at, reason=record.reason, ended_as=str(record.state))
        )
    _keep(outer, [replace(one, entity_id=one.entity_id or record.id) for one in decided])
    if published.untold:
        entity.change(published=replace(published, untold=()))


def with_untold(metadata: dict[str, Any] | None, untold: Sequence[UnreportedDecision]) -> dict[str, Any] | None:
    """The metadata of a row, with the decisions and ends that no earlier row has reported."""
    if not untold:
        return metadata
    decided = [{**to_builtins(replace(one, left_out=0)), "at": iso(one.at)} for one in untold]
    left_out = sum(one.left_out for one in untold)
    return {**(metadata or {}), "decided": decided, **({"decided_more": left_out} if left_out else {})}


def birth(lifecycles: Lifecycles, kind: str, name: str | None, phase: str | None = None) -> Published | None:
    """The published state of a new entity: the lifecycle's initial state, or the first one of `phase`."""
    if name is None:
        return None
    refined = lifecycles.refinement(name, kind)
    return _published(name, str(refined.initial if phase is None else refined.state_of(phase)))


@lru_cache(maxsize=256)  # one object for all new entities
def _published(lifecycle: str, state: str) -> Published:
    return Published(lifecycle=lifecycle, state=state)


def publish_birth(entity: Entity[Any], metadata: dict[str, Any] | None) -> None:
    """Publish the creation of an entity, with its lifecycle."""
    published: Published = entity.record.published
    refined = entity.kernel.lifecycles.refinement(published.lifecycle, entity.record.kind)
    described = {**(metadata or {}), "lifecycle": published.lifecycle}
    phases = (None, refined.phases[published.state])
    _note(entity, published, (None, published.state), phases, "create", "info", None, described)


def _note(  # noqa: PLR0917 - the parts of a transition
    entity: Entity[Any], published: Published, states: tuple[str | None, str], phases: tuple[str | None, str],
    event: str, severity: str, reason: str | None, metadata: dict[str, Any] | None,
) -> None:  # fmt: skip
    kernel, record = entity.kernel, entity.record
    kernel.seq += 1
    job_id, workstream_id, attempt, worker_id = entity.context()
    source, target = states
    kernel.turn.transitions.append(
        PublishedTransition(
            kernel.seq, record.kind, record.id, published.seq, source, target, event, severity, kernel.at,
            reason, job_id, workstream_id, record.run, attempt, worker_id, metadata,
            phases=phases,
        )
    )  # fmt: skip
