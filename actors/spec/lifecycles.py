"""The lifecycles that a runtime knows, and which of them an entity runs by.

Rules
-----
- The lifecycle of an entity is decided at its creation, and stored in its record: its own setting, else that of its
  workstream, else that of its runtime; a lifecycle without a machine for the entity's kind is passed over. `OWN` is the
  runtime's own.
- A lifecycle has a name: of a published one (`machines/lifecycles`), of one that the runtime was given, or the import
  path "module:NAME" of one or of several (for several kinds), which a restart finds again.
- A lifecycle that no entity can run by is refused (`machines/adapt/compat.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Final, cast

from msgspec.structs import replace

from ...machines.adapt.lifecycle import Lifecycle
from ...machines.builtin.table import MACHINES
from ...machines.keywords import did_you_mean
from ...machines.lifecycles import LIFECYCLES
from ..user_code import elements, is_a, plain
from .model import Defaults
from .schema import short

if TYPE_CHECKING:
    from ...machines.adapt.refinement import Refinement

OWN: Final = "own"
"""The name of the runtime's own lifecycles."""

Kinds = Mapping[str, Lifecycle]


class UnknownLifecycle(LookupError):  # noqa: N818 - the name says what happened
    """No lifecycle has that name or path, or it has no states for that kind of entity."""


class Lifecycles:
    """Lifecycles by name and by kind of entity. resolve: finds the object of an import path; raises LookupError."""

    def __init__(
        self,
        more: Iterable[Lifecycle] = (),
        default: str | None = None,
        resolve: Callable[[str], object] | None = None,
    ) -> None:
        self._more: dict[str, dict[str, Lifecycle]] = {}  # by name, together with the published lifecycle of that name
        self._refined: dict[tuple[str, str], Refinement] = {}
        self._resolve = resolve
        self._located: Callable[[str], str] = str
        self.own: list[Lifecycle] = []  # lifecycles besides the published ones
        self.default = default
        for lifecycle in more:
            self.add(lifecycle)

    def add(self, lifecycle: Lifecycle) -> None:
        """Add a lifecycle. Raises ValueError if no entity can run by it, or if another has its name and kind."""
        from ...machines.adapt.compat import faults  # noqa: PLC0415 - most programs add no lifecycle

        if wrong := faults(lifecycle):
            raise ValueError(f"no {lifecycle.kind} can run by the lifecycle {lifecycle.name!r}: {'; '.join(wrong)}")
        if not lifecycle.name or lifecycle.name == OWN:
            raise ValueError(f"a lifecycle cannot be named {lifecycle.name!r}: give it another name")
        kinds = self._more.setdefault(lifecycle.name, dict(LIFECYCLES.get(lifecycle.name, {})))
        before = kinds.get(lifecycle.kind)
        if before is None:
            kinds[lifecycle.kind] = lifecycle
            self.own.append(lifecycle)
        elif before is not lifecycle:
            raise ValueError(
                f"there is another lifecycle {lifecycle.name!r} of a {lifecycle.kind}: give this one another name"
            )

    def within(self, located: Callable[[str], str]) -> Lifecycles:
        """Return these lifecycles for relative import paths: `located` returns the stored form of a path."""
        seen = copy(self)
        seen._located = located
        return seen

    def find(self, said: object) -> tuple[str, Kinds]:
        """The name of a given lifecycle, and its lifecycles by kind of entity: none for `OWN`.

        said: a name, an import path, a `Lifecycle` or several; a given `Lifecycle` is added. Raises UnknownLifecycle,
        and ValueError for a lifecycle that no entity can run by.
        """
        said = plain(said)
        if type(said) is str:
            name = self._located(said) if ":" in said and said not in self else said
            return name, self._named(name)
        several = _several(said)
        if several is None or len({one.name for one in several}) != 1:
            raise UnknownLifecycle(f"{short(said)} is no lifecycle: give a name, an import path, or a Lifecycle")
        for one in several:
            self.add(one)
        return several[0].name, self._by_kind(several[0].name)

    def _named(self, name: str) -> Kinds:
        if name == OWN:
            return {}
        if name not in self and ":" in name:
            if self._resolve is None:
                return {}
            several = _several(found := self._resolve(name))
            if several is None:
                raise UnknownLifecycle(f"{short(name)} is no lifecycle, but {short(found)}")
            for one in several:
                self.add(replace(one, name=name))
        if name not in self:
            names = list(dict.fromkeys((*LIFECYCLES, *self._more, OWN)))
            advice = did_you_mean(name, names) or f"there are {', '.join(names)}"
            raise UnknownLifecycle(f"there is no lifecycle {short(name)}; {advice}")
        return self._by_kind(name)

    def __contains__(self, name: str) -> bool:
        return name in self._more or name in LIFECYCLES

    def _by_kind(self, name: str) -> Kinds:
        return self._more.get(name) or LIFECYCLES[name]

    def states(self, kind: str) -> list[str]:
        """The states of a kind in the runtime's own machine, then in all known lifecycles."""
        states = dict.fromkeys(map(str, MACHINES[kind].states))
        for name in (*LIFECYCLES, *self._more):
            if (one := self._by_kind(name).get(kind)) is not None:
                states.update(dict.fromkeys(map(str, one.machine.states)))
        return list(states)

    def of(self, kind: str, *said: str | None) -> str | None:
        """The lifecycle's name for an entity of that kind: the first of `said` that has the kind; None for the own."""
        for name in (*said, self.default):
            if name == OWN:
                return None
            if name is not None and kind in self._named(name):
                return name
        return None

    def get(self, name: str, kind: str) -> Lifecycle:
        """The lifecycle of that name for that kind. Raises UnknownLifecycle."""
        lifecycle = self._named(name).get(kind)
        if lifecycle is None:
            raise UnknownLifecycle(f"the lifecycle {name!r} has no states for a {kind}")
        return lifecycle

    def refinement(self, name: str, kind: str) -> Refinement:
        """The refinement by which entities of that kind run by it. Raises UnknownLifecycle."""
        refined = self._refined.get((name, kind))
        if refined is None:
            from ...machines.adapt.refinement import Refinement  # noqa: PLC0415 - most jobs run by no other lifecycle

            refined = self._refined[name, kind] = Refinement(self.get(name, kind))
        return refined

    def defaults(self, name: str, kind: str) -> Defaults:
        """The default settings under a lifecycle."""
        said: Mapping[str, Any] = self.get(name, kind).defaults
        return Defaults(**said)


def _several(said: object) -> Sequence[Lifecycle] | None:
    """A lifecycle, or those of several kinds; None for any other object."""
    several = [said] if is_a(said, Lifecycle) else [*elements(said)] if is_a(said, (list, tuple)) else []
    if several and all(is_a(one, Lifecycle) for one in several):
        return cast("Sequence[Lifecycle]", several)
    return None
