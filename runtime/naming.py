"""Lifecycles of a specification by name: what a journal says of them, and how a restart finds them again.

A `Lifecycle` that is given as it is gets known to the runtime by its name. It has to be given to the next runtime as
well, `Runtime(lifecycles=[...])`; one that is named by its import path is found by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ..actors.lifecycles import Lifecycles
from ..actors.schema import Finding
from ..actors.validate import SpecificationError
from .functions import find, look_in

if TYPE_CHECKING:
    from ..actors.loading import Loaded
    from ..actors.spec import Task, Tool, Worker, Workstream

    Said = TypeVar("Said", Task, Worker, Workstream)


class _Placed(msgspec.Struct):
    """What is read of a specification: where its modules are."""

    folder: str | None = None


class Finder:
    """Finds what stands under an import path, once the folders of what was loaded are looked in."""

    def __init__(self) -> None:
        self.loaded: Loaded | None = None

    def __call__(self, path: str) -> object:
        """What stands there. Raises BodyNotFound. Imports its module if need be."""
        if self.loaded is not None:
            look_beside(self.loaded)
            self.loaded = None
        return find(path)


def look_beside(loaded: Loaded) -> None:
    """Have modules found where the specifications of what was loaded say that theirs are."""
    for encoded in loaded.specs.values():
        if (folder := msgspec.json.decode(encoded, type=_Placed).folder) is not None:
            look_in(folder)


def named(spec: Workstream, lifecycles: Lifecycles) -> Workstream:
    """The workstream, checked already, with names in place of its lifecycles."""
    changed: dict[str, object] = {}
    if any(_given(task.lifecycle) for task in spec.tasks):
        changed["tasks"] = [by_name(task, lifecycles) for task in spec.tasks]
    if any(tool.breaker is not None and _given(tool.breaker.lifecycle) for tool in spec.tools.values()):
        changed["tools"] = {name: _tool(tool, lifecycles) for name, tool in spec.tools.items()}
    spec = by_name(spec, lifecycles)
    return msgspec.structs.replace(spec, **changed) if changed else spec


def by_name(said: Said, lifecycles: Lifecycles) -> Said:
    """The same, with a name in place of its lifecycle."""
    if not _given(said.lifecycle):
        return said
    return msgspec.structs.replace(said, lifecycle=lifecycles.find(said.lifecycle)[0])


def _tool(tool: Tool, lifecycles: Lifecycles) -> Tool:
    breaker = tool.breaker
    if breaker is None or not _given(breaker.lifecycle):
        return tool
    name = lifecycles.find(breaker.lifecycle)[0]
    return msgspec.structs.replace(tool, breaker=msgspec.structs.replace(breaker, lifecycle=name))


def _given(said: object) -> bool:
    return said is not None and not isinstance(said, str)


def known_by(said: object, more: Iterable[object], resolve: Callable[[str], object]) -> Lifecycles:
    """The lifecycles of a runtime. Raises SpecificationError for those that cannot be."""
    lifecycles = Lifecycles(resolve=resolve)
    try:
        for one in more:
            lifecycles.find(one)
        if said is not None:
            lifecycles.default = lifecycles.find(said)[0]
    except (LookupError, ValueError) as error:
        raise SpecificationError([Finding("lifecycle", str(error.args[0]))], "the runtime's settings") from None
    return lifecycles


def check_loaded(loaded: Loaded, lifecycles: Lifecycles) -> None:
    """Refuse to go on with entities whose lifecycle is not known. Raises SpecificationError; nothing was changed."""
    found: dict[str, Finding] = {}
    for record in chain(loaded.jobs, loaded.workstreams, loaded.tasks, loaded.workers, loaded.breakers):
        published = record.published
        if published is None:
            continue
        try:
            lifecycles.get(published.lifecycle, record.kind)
        except LookupError as error:
            text = f"{record.kind} {record.id} of this journal runs by a lifecycle that is not known: {error}"
            found.setdefault(published.lifecycle, Finding("lifecycles", text, "give it: Runtime(lifecycles=[...])"))
    if found:
        raise SpecificationError(list(found.values()), "the runtime's settings")
