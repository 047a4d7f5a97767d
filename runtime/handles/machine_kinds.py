"""How a `MachineActor` is checked when it is spawned: its name, its functions, its timed events and its facts.

Rules
-----
- All findings are reported at once.
- A journal that outlives the process accepts only functions and machines that can be found again after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from weakref import finalize

import msgspec

from ...actors.machines.kind import (
    ANY,
    Definition,
    MachineActor,
    MachineKind,
    due_of,
    extended,
    number_problem,
    rows_of,
)
from ...actors.spec.schema import Finding, plain_problem
from ...actors.spec.validate import SpecificationError
from ...actors.user_code import called, plain_text, text_of
from ...machines.audit.guard_fields import readers
from ...machines.keywords import did_you_mean
from ...machines.machine import call_problem
from ..functions.import_paths import path_of_value, wants_too_much
from ..functions.registry import BodyNotFound, NoPath
from ..functions.signatures import name_of

if TYPE_CHECKING:
    from .services import Services

LONGEST_NAME = 200


def check_name(name: object) -> None:
    """Check the name of an entity. Raises TypeError, ValueError."""
    name = plain_text(name, "the name of a machine")
    if not (0 < len(name) <= LONGEST_NAME and name.isprintable() and name.strip() == name and name[0] != "-"):
        raise ValueError(
            f"{name!r:.80} cannot be the name of a machine: use 1 to {LONGEST_NAME} printable characters, "
            "none of them a space at its ends or a '-' at its beginning"
        )
    if "/" in name:
        raise ValueError(f"{name!r:.80} cannot be the name of a machine: '/' parts a job from its task")


def prepare(actor: MachineActor, services: Services) -> MachineKind:
    """Check an actor, and make the kind of its entities. Raises SpecificationError with all findings."""
    machine = actor.machine
    found = [*_findings(actor)]
    names: list[str] = []
    bodies, durable = services.bodies, services.journal.durable_medium
    path = path_of_value(machine)

    def named(place: str, function: Any) -> str:
        try:
            names.append(bodies.name_of(function, durable=durable))
            return names[-1]
        except NoPath as error:
            found.append(Finding(place, str(error)))
        except (TypeError, BodyNotFound) as error:
            found.append(Finding(place, f"is no function: {error}"))
        return ""

    rows = rows_of(machine, lambda guard: None if path is not None else named("guard", guard))
    facts = None if actor.facts is None or actor.fields is not None else named("facts", _type(actor.facts))
    on_event = None if actor.on_event is None else named("on_event", actor.on_event)
    callbacks = [
        {str(state): named(f"{place}.{state}", function) for state, function in functions.items()}
        for place, functions in (("on_enter", actor.on_enter), ("on_exit", actor.on_exit))
    ]
    if found:
        bodies.drop_uses(names)
        raise SpecificationError(found, f"machine {machine.name!r}")
    machine = extended(machine, actor.timed)
    definition = Definition(
        machine=machine.name, path=path, initial=str(machine.initial), endless=machine.endless,
        states=[*machine.states.values()], transitions=rows, timed=[*machine.timed], more=[*actor.timed], facts=facts,
        fields=actor.fields, on_event=on_event, on_enter=callbacks[0], on_exit=callbacks[1], folder=actor.folder,
    )  # fmt: skip
    kind = MachineKind(definition, machine, _type(actor.facts), actor.on_event)
    # Decode it, as a restart does: then states and events are plain names, and not members of an enumeration.
    kind = MachineKind(msgspec.json.decode(kind.encoded, type=Definition), machine, kind.facts, kind.on_event)
    if not all(":" in name for name in names):
        finalize(kind, bodies.drop_uses_later, names).atexit = False
    return kind


def _findings(actor: MachineActor) -> Iterator[Finding]:
    machine, facts = actor.machine, actor.facts
    asked_for = readers(machine)
    for fact, guards in asked_for.items():
        if not hasattr(facts, fact):
            asked = " and ".join(repr(guard) for guard in guards)
            yield Finding("facts", f"there is no fact {fact!r}, which its guards read: {asked}")
    for index, entry in enumerate(actor.timed):
        place = f"timed[{index}]"
        if entry.state not in machine.states:
            yield Finding(f"{place}.state", f"there is no state {entry.state!r}", _near(entry.state, machine.states))
        elif entry.event not in machine.valid_events(entry.state):
            names = sorted(machine.valid_events(entry.state))
            yield Finding(
                f"{place}.event", f"{entry.state!r} knows no event {entry.event!r}", _near(entry.event, names)
            )
    used = {*asked_for, *(entry.after for entry in (*machine.timed, *actor.timed))}
    names = [] if facts is None else [field.name for field in msgspec.structs.fields(facts)]
    for entry in (*machine.timed, *actor.timed):
        if hasattr(facts, entry.after):
            try:
                due_of(entry.after, getattr(facts, entry.after), 0.0)
            except ValueError as error:
                yield Finding(f"facts.{entry.after}", str(error))
            continue
        own = entry in actor.timed
        meant = did_you_mean(entry.after, [name for name in names if own or name not in used])
        if meant or own:  # a shared machine may have timed events for which these facts have no field
            text = f"the timed event {entry.event!s} of {entry.state!s} is after {entry.after!r}, which is no fact"
            yield Finding("timed", text, meant or f"its facts: {', '.join(names) or 'none'}")
    yield from _misfits(actor)
    for place, functions in (("on_enter", actor.on_enter), ("on_exit", actor.on_exit)):
        for state in functions:
            if state not in machine.states and state != ANY:
                yield Finding(f"{place}.{state}", f"there is no state {state!r}", _near(state, machine.states))


def _misfits(actor: MachineActor) -> Iterator[Finding]:
    """The functions that cannot be called with the arguments that they get."""
    guards = dict.fromkeys(row.guard for row in actor.machine.transitions if row.guard is not None)
    for place, function in (*(("guard", guard) for guard in guards), ("on_event", actor.on_event)):
        if function is None:
            continue
        try:
            problem = called(call_problem, function, 2)
        except Exception as error:  # an object's signature may run code of its own
            problem = text_of(error)
        if problem is not None:
            text = f"{name_of(function)} cannot be called with the facts and a Fire: {problem}"
            yield Finding(place, text, "write it as `def name(facts, fire)`")
    for place, functions in (("on_enter", actor.on_enter), ("on_exit", actor.on_exit)):
        for state, function in functions.items():
            if (problem := wants_too_much(function)) is not None:
                yield Finding(f"{place}.{state}", problem)


def _type(facts: msgspec.Struct | None) -> type[msgspec.Struct] | None:
    return None if facts is None else type(facts)


def _near(name: str, known: Any) -> str | None:
    names = [str(one) for one in known]
    return did_you_mean(str(name), names) or (f"there are: {', '.join(names)}" if names else None)


def first_facts(actor: MachineActor, kind: MachineKind) -> msgspec.Raw | None:
    """Encode the facts of a new entity as they are stored. Raises SpecificationError if they cannot be."""
    if actor.facts is None:
        return None
    source = f"the facts of machine {kind.machine.name!r}"
    if problem := number_problem(actor.facts):
        raise SpecificationError([Finding("facts", problem)], source)
    try:
        raw = msgspec.Raw(msgspec.json.encode(actor.facts))
        plain = msgspec.json.decode(raw)
        kind.read(raw)
        for entry in kind.machine.timed:
            due_of(entry.after, getattr(actor.facts, entry.after, None), 0.0)
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise SpecificationError([Finding("facts", str(error))], source) from None
    if problem := plain_problem(plain):
        raise SpecificationError([Finding("facts", problem)], source)
    return raw
