"""The kind of a `MachineActor`: its machine, facts and functions, and their stored form.

Rules
-----
- After a restart a machine is found by its import path. A machine that was declared in a file (or has no path, and
  no function without one) is made from its table, which the journal holds. All are stored with their table: so a
  journal can be checked, and a command to a stopped one refused, without importing the application's code.
- A guard reads the facts before the event, and the `Fire` as its payload. The sender of an event sets the facts that
  change with it (`Fire.facts`), or `on_event(facts, fire)` computes the next facts: a plain function, which never
  waits. It is for facts that no sender can know, as a count: two senders would overwrite each other. The sender's
  facts are set first.
- Facts are stored as JSON, and decoded into the Struct that declares them.
- A timed event's fact holds a delay (seconds, or a text as "90s") or a due time: a text as "2030-01-31T09:00:00Z", a
  `datetime`, or UTC epoch seconds if its name ends with `_at` or `_until`. With None, or an empty text, no timer is
  set.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeAlias, cast

import msgspec

from ...machines import Guard, InvalidTransitionError, Machine, Severity, State, Timed, Transition
from ...machines.keywords import KeywordsChecked, did_you_mean
from ...machines.machine import answers_later
from ..messages.commands import Fire
from ..messages.errors import FireFailed, MachineNotFound
from ..records.entities import MachineRecord
from ..spec.schema import MOST_VALUES, plain_problem, short
from ..times import is_named, moment, point
from ..user_code import called, holds_more, is_a, message_of

Facts: TypeAlias = Any  # an instance of the Struct that the application declares, or None
Reducer: TypeAlias = Callable[[Any, Fire], Any]
Callback: TypeAlias = Callable[..., Any]  # like a hook's function: it takes a TaskContext, or no argument

NO_FACTS = "It was spawned without facts, which a guard may read: MachineActor(machine, facts). "

ANY = "*"
"""In `on_enter` and `on_exit`: every state."""


def _failed(text: str) -> FireFailed:
    error = FireFailed(text)
    error.by_function = True
    return error


class MachineActor(msgspec.Struct, frozen=True, metaclass=KeywordsChecked):
    """A durable actor that runs by an application's machine: `runtime.spawn(MachineActor(MACHINE), name="run-7")`.

    facts: the values that guards read, an instance of a Struct of the application. timed: timed events besides the
    machine's own. on_event: `on_event(facts, fire)` returns the facts after an event. on_enter, on_exit: functions by
    state ("*": every state), run as hooks after the commit, at least once; their `task.args` describe the event. Of a
    file (`load_machine`), fields: the facts that it declares, with their defaults; folder: where its modules are found.

    Raises TypeError for arguments of other types.
    """

    machine: Machine
    facts: Facts = None
    timed: Sequence[Timed] = ()
    on_event: Reducer | None = None
    on_enter: Mapping[str, Callback] = {}
    on_exit: Mapping[str, Callback] = {}
    fields: dict[str, Any] | None = None
    folder: str | None = None

    def __post_init__(self) -> None:
        """Check the types of the arguments."""
        if not isinstance(cast("object", self.machine), Machine):
            raise TypeError(f"a MachineActor takes a Machine, and not {self.machine!r:.60}")
        facts = cast("object", self.facts)
        if facts is not None and not isinstance(facts, msgspec.Struct):
            meant = f": {facts.__name__}()" if isinstance(facts, type) else " that declares them"
            raise TypeError(
                f"the facts of a MachineActor are an instance of a msgspec Struct{meant}, not {facts!r:.60}"
            )
        for entry in cast("Iterable[object]", self.timed):
            if not isinstance(entry, Timed):
                raise TypeError(f"timed holds Timed(state, event, fact), and not {entry!r:.80}")
        if self.on_event is not None and not callable(cast("object", self.on_event)):
            raise TypeError(f"on_event is a function of the facts and a Fire, and not {self.on_event!r:.80}")
        if answers_later(self.on_event):
            raise TypeError("on_event is a plain function of the facts and a Fire, and neither async nor a generator")
        for name, functions in (("on_enter", self.on_enter), ("on_exit", self.on_exit)):
            if not isinstance(cast("object", functions), Mapping):
                raise TypeError(f"{name} holds functions by state: {{'*': function}}, and not {functions!r:.80}")
            for state, function in functions.items():
                if not callable(cast("object", function)):
                    raise TypeError(f"{name}[{str(state)!r}] is a function, and not {function!r:.80}")

    def with_facts(self, **changes: Any) -> MachineActor:
        """A copy with these facts changed. Raises TypeError for an unknown fact."""
        if self.facts is None:
            raise TypeError(f"machine {self.machine.name!r} was given no facts")
        return msgspec.structs.replace(self, facts=msgspec.structs.replace(self.facts, **changes))


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """A machine's row in its stored form. guard: its guard's import path, if needed; asked: the guard in words."""

    source: str
    event: str
    target: str
    guard: str | None = None
    asked: str | None = None
    forced: bool = False
    severity: Severity = "info"


class Definition(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The stored form of a kind of `MachineActor`. path: its machine's import path; None: the table defines it.

    facts: the import path of the facts' Struct; fields: if a file declares them, the facts with their defaults. more:
    the events of `timed` that are not the machine's own. The rest are names and paths of functions, as in
    `MachineActor`.
    """

    machine: str
    path: str | None = None
    initial: str
    endless: bool = False
    states: list[State]
    transitions: list[Row]
    timed: list[Timed] = []
    more: list[Timed] = []
    facts: str | None = None
    fields: dict[str, Any] | None = None
    on_event: str | None = None
    on_enter: dict[str, str] = {}
    on_exit: dict[str, str] = {}
    folder: str | None = None


class DefinitionResolver(Protocol):
    """Finds the objects that a definition names."""

    def resolve(self, name: str) -> Callable[..., Any]:
        """The function of a path or registered name. Raises LookupError."""
        ...

    def find(self, path: str) -> object:
        """The object of an import path. Raises LookupError."""
        ...

    def located(self, path: str, folder: str) -> str:
        """The stored form of an import path that is relative to a folder."""
        ...


class _FolderResolver:
    """Finds the objects of a definition with a folder: older versions stored the folder only."""

    def __init__(self, finder: DefinitionResolver, folder: str) -> None:
        self._finder = finder
        self._folder = folder

    def resolve(self, name: str) -> Callable[..., Any]:
        return self._finder.resolve(self._finder.located(name, self._folder))

    def find(self, path: str) -> object:
        return self._finder.find(self._finder.located(path, self._folder))

    def located(self, path: str, folder: str) -> str:
        return self._finder.located(path, folder)


class MachineKind:
    """The kind of entities: one object for all with the same declaration."""

    __slots__ = ("__weakref__", "definition", "digest", "encoded", "facts", "machine", "on_event")

    def __init__(
        self, definition: Definition, machine: Machine, facts: type[msgspec.Struct] | None, on_event: Reducer | None
    ) -> None:
        self.definition = definition
        self.encoded = msgspec.json.encode(definition)
        self.digest = digest_of(self.encoded)
        self.machine = machine
        self.facts = facts
        self.on_event = on_event

    def read(self, raw: msgspec.Raw | None) -> Facts:
        """The facts of a record. Raises msgspec.DecodeError if they do not fit its Struct."""
        if raw is None or self.facts is None:
            return None
        try:
            return called(msgspec.json.decode, raw, type=self.facts)
        except msgspec.MsgspecError:
            raise
        except Exception as error:  # the Struct may run code of its own, as a `__post_init__`
            raise msgspec.ValidationError(f"its own code raised {message_of(error)}") from error

    def judge(self, state: str, facts: Facts, raw: msgspec.Raw | None, fire: Fire) -> tuple[Transition, Facts]:
        """The row that an event takes, and the facts after it; the same object if no fact changes.

        raw: the stored facts; `on_event` gets a decoded copy of its own, since they may be mutable.

        Raises InvalidTransitionError, and FireFailed if a function of the application raises, or returns invalid facts.
        """
        try:
            row = called(self.machine.transition, state, fire.event, facts, fire)
            changed = called(self._with, facts, fire.facts)
            if self.on_event is not None:
                given = self.read(raw) if changed is facts else changed
                changed = self._plain(called(self.on_event, given, fire), fire)
        except (InvalidTransitionError, FireFailed):
            raise
        except Exception as error:  # an error of the application must not become one of the runtime
            raise _failed(
                f"{self.machine.name}: {fire.event!r} in state {state!r} was not taken, since a function of the "
                f"application raised {message_of(error)}. {'' if facts is not None else NO_FACTS}"
                "Nothing has changed."
            ) from error
        return row, changed

    def _plain(self, changed: Any, fire: Fire) -> Facts:
        """The facts that `on_event` returned, encoded and decoded: their class may have code of its own."""
        if not is_a(changed, self.facts or type(None)):
            raise _failed(f"{self.machine.name}: its on_event returned {short(changed)}, which are no facts of it")
        if changed is None:
            return None
        if problem := called(number_problem, changed):
            raise _failed(f"{self.machine.name}: {fire.event!r} was not taken: {problem}. Nothing has changed.")
        try:
            return self.read(msgspec.Raw(called(msgspec.json.encode, changed)))
        except Exception as error:
            raise _failed(
                f"{self.machine.name}: its on_event returned facts that do not fit: {message_of(error)}"
            ) from None

    def _with(self, facts: Facts, changes: Mapping[str, Any] | None) -> Facts:
        """The facts with changes."""
        if not changes:
            return facts
        fields = [] if self.facts is None else [field.name for field in msgspec.structs.fields(self.facts)]
        for name in changes:
            if name not in fields:
                advice = did_you_mean(name, fields) or f"its facts: {', '.join(fields) or 'none'}"
                raise FireFailed(f"{self.machine.name}: there is no fact {name!r:.80}; {advice}")
        assert self.facts is not None  # noqa: S101 - only a kind with facts gets here
        changed = msgspec.structs.replace(facts, **changes)
        if problem := number_problem(changed):  # JSON would write NaN as null, which the Struct may allow
            raise FireFailed(f"{self.machine.name}: {problem}")
        try:
            return msgspec.json.decode(msgspec.json.encode(changed), type=self.facts)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            raise FireFailed(f"{self.machine.name}: these facts do not fit: {error}") from None

    def due(self, state: str, facts: Facts, now: float) -> dict[str, float]:
        """The due time of each timed event of a state that is entered now (UTC epoch seconds)."""
        return {
            str(entry.event): at
            for entry in self.machine.timed_in[state]
            if (at := due_of(entry.after, getattr(facts, entry.after, None), now)) is not None
        }


def digest_of(encoded: bytes) -> int:
    """The hash by which definitions are compared."""
    from hashlib import blake2b  # noqa: PLC0415 - slow to import

    return int.from_bytes(blake2b(encoded, digest_size=8).digest())


def unfit(record: MachineRecord, kind: MachineKind) -> str:
    """The reason why an entity cannot run by a kind; "" if it can."""
    machine = kind.machine
    if record.machine != machine.name:
        return f"{record.id!r} runs by machine {record.machine!r}, and not by {machine.name!r}"
    if record.state not in machine.states:
        return f"{record.id!r} is in state {record.state!r}, which machine {machine.name!r} does not have any more"
    try:
        kind.read(record.facts)
    except msgspec.MsgspecError as error:
        return f"the facts of {record.id!r} do not fit machine {machine.name!r} any more: {error}"
    return ""


def number_problem(facts: Facts) -> str | None:
    """The reason why a number in the facts cannot be stored as JSON; else None."""
    if facts is None:
        return None
    if holds_more(MOST_VALUES, facts):
        return f"the facts hold more than {MOST_VALUES:,} values and characters"
    for field in msgspec.structs.fields(facts):
        value = getattr(facts, field.name)
        if isinstance(value, int | float) and (problem := plain_problem(value)):
            return f"the fact {field.name}: {problem}"
    return None


def names_moment(name: str, value: object) -> bool:
    """Whether a fact of that name and value is a point in time, and no delay."""
    if isinstance(value, str):
        return is_named(value)
    return isinstance(value, datetime) or (isinstance(value, int | float) and name.endswith(("_at", "_until")))


def due_of(name: str, value: object, now: float) -> float | None:
    """The due time of a timed event, from its fact. Raises ValueError for a fact that is no time."""
    match value:
        case None | "":
            return None
        case datetime():
            if value.tzinfo is None:
                raise ValueError(f"the fact {name} is {value}, which has no zone")
            return point(value.timestamp())
        case bool():
            raise ValueError(f"the fact {name} is {value}, which is neither a delay nor a point in time")
        case int() | float() | str():
            try:
                if not isinstance(value, str) and name.endswith(("_at", "_until")):
                    return point(value)
                return moment(value, now)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{error} (the fact {name})") from None
        case _:
            raise ValueError(f"the fact {name} is {short(value)}, which is neither a delay nor a point in time")


# -- from a machine to its stored form, and back -----------------------------------------------------------------------


def rows_of(machine: Machine, path_of: Callable[[Guard], str | None]) -> list[Row]:
    """A machine's rows in their stored form, each guard by its path."""
    return [
        Row(
            str(row.source), str(row.event), str(row.target), None if row.guard is None else path_of(row.guard),
            row.guard_name, row.forced, row.severity,
        )
        for row in machine.transitions
    ]  # fmt: skip


def extended(machine: Machine, more: Iterable[Timed]) -> Machine:
    """The machine with more timed events. Raises ValueError for a state that it does not have."""
    added = tuple(more)
    if not added:
        return machine
    return Machine(
        machine.name, machine.initial, machine.states.values(), machine.transitions, (*machine.timed, *added),
        endless=machine.endless,
    )  # fmt: skip


def table_of(definition: Definition, guard: Callable[[Row], Guard | None]) -> Machine:
    """The machine of a definition's table. Raises ValueError for a table that cannot be compiled."""
    return Machine(
        definition.machine,
        definition.initial,
        definition.states,
        [
            Transition(row.source, row.event, row.target, guard(row), row.forced, row.severity)
            for row in definition.transitions
        ],
        definition.timed,
        endless=definition.endless,
    )


def drawn(definition: Definition) -> Machine:
    """The machine of a definition for drawings and lookups: its guards have names, and are never called."""
    return table_of(definition, lambda row: None if row.asked is None else _Named(row.asked))


def shown_guard(path: str) -> Guard:
    """A placeholder for a guard that is not imported: it has the guard's name, and is never called."""
    return _Named(path.rpartition(":")[2].rpartition(".")[2])


class _Named:
    """A placeholder for a guard."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, facts: object, payload: object) -> bool:  # noqa: ARG002 - it is never called
        return False


def merged(definitions: Iterable[Definition]) -> Machine | None:
    """One machine with the states and rows of all definitions of an entity, the last one's first."""
    states: dict[str, State] = {}
    rows: dict[tuple[str, str, str, str | None], Transition] = {}
    last: Machine | None = None
    for definition in reversed([*definitions]):
        machine = drawn(definition)
        last = last or machine
        states = {**machine.states, **states}
        for row in machine.transitions:
            rows.setdefault((row.source, row.event, row.target, row.guard_name), row)
    return None if last is None else Machine(last.name, last.initial, states.values(), rows.values())


def revived(definition: Definition, finder: DefinitionResolver) -> MachineKind:
    """The kind of a definition. Raises MachineNotFound, whose text names the missing object."""
    beside = finder if definition.folder is None else _FolderResolver(finder, definition.folder)
    try:
        machine = _machine(definition, beside)
        on_event = None if definition.on_event is None else beside.resolve(definition.on_event)
        facts = _facts_type(definition, beside)
    except (LookupError, ValueError) as error:
        raise MachineNotFound(f"machine {definition.machine!r} cannot be found again: {_text(error)}") from error
    if definition.path is not None:  # the code may have changed since the definition was stored
        definition = msgspec.structs.replace(
            definition, initial=str(machine.initial), endless=machine.endless, states=[*machine.states.values()],
            transitions=rows_of(machine, lambda _: None), timed=[*machine.timed],
        )  # fmt: skip
    return MachineKind(definition, machine, facts, on_event)


def _machine(definition: Definition, finder: DefinitionResolver) -> Machine:
    if definition.path is None:
        return table_of(definition, lambda row: _guard(row, finder))
    machine = finder.find(definition.path)
    if not isinstance(machine, Machine) or machine.name != definition.machine:
        raise LookupError(f"{definition.path!r} is {machine!r:.80}, and no machine of that name")
    return extended(machine, definition.more)


def _guard(row: Row, finder: DefinitionResolver) -> Guard | None:
    if row.guard is not None:
        return finder.resolve(row.guard)
    if row.asked is not None:
        raise LookupError(f"its guard {row.asked!r} existed only in the program that spawned it; spawn it again")
    return None


def _facts_type(definition: Definition, finder: DefinitionResolver) -> type[msgspec.Struct] | None:
    if definition.fields is not None:
        return facts_type(definition.machine, definition.fields, {entry.after for entry in definition.timed})
    if definition.facts is None:
        return None
    found = finder.find(definition.facts)
    if isinstance(found, type) and issubclass(found, msgspec.Struct):
        return found
    raise LookupError(f"{definition.facts!r} is {found!r:.80}, and no Struct")


def facts_type(name: str, fields: Mapping[str, Any], times: Iterable[str]) -> type[msgspec.Struct]:
    """The Struct of facts that a file declares by their defaults; facts in `times` may be numbers, texts or None."""
    timed = frozenset(times)
    return msgspec.defstruct(
        "".join(part.capitalize() for part in name.replace("-", "_").split("_")) + "Facts",
        [(fact, float | str | None if fact in timed else _type(value), value) for fact, value in fields.items()],
        frozen=True,
        kw_only=True,
    )


def _type(value: object) -> Any:  # Any: a type as msgspec accepts it
    if isinstance(value, list | dict):
        return list[Any] if isinstance(value, list) else dict[str, Any]
    return float if type(value) is float else type(value)


def _text(error: Exception) -> str:
    return str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)


def names_of(functions: Mapping[str, str], state: str) -> Iterator[str]:
    """The functions of `on_enter` or `on_exit` for a state: its own first, then those of "*"."""
    for key in (state, ANY):
        if (name := functions.get(key)) is not None:
            yield name
