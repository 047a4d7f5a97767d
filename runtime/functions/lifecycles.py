"""Lifecycles of a specification by name: their stored names, and how a restart finds them again.

The runtime learns a `Lifecycle` object that it is given, by its name. The next runtime must be given it as
well, `Runtime(lifecycles=[...])`; a lifecycle that is named by its import path is found without that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import msgspec

from ...actors.spec.lifecycles import Lifecycles
from ...actors.spec.schema import Finding
from ...actors.spec.validate import SpecificationError
from ...machines.lifecycles import LIFECYCLES
from .folder_modules import lies
from .import_paths import BodyNotFound, find, located, parts_of
from .main_program import MAIN, own_name

if TYPE_CHECKING:
    from ...actors.records.loaded import Loaded
    from ...actors.spec.model import Task, Tool, Worker, Workstream

    SpecT = TypeVar("SpecT", Task, Worker, Workstream)


class _SpecFolder(msgspec.Struct):
    """The field that is read of a specification: the folder of its modules."""

    folder: str | None = None


class ImportPathFinder:
    """Finds the object of an import path.

    A path of an older version has no folder: the folders of the loaded specifications are searched, and exactly one of
    them must have it.
    """

    def __init__(self) -> None:
        self._folders: dict[str, None] = {}

    def look_beside(self, loaded: Loaded) -> None:
        """Add the folders of the loaded specifications."""
        for encoded in loaded.specs.values():
            if (folder := msgspec.json.decode(encoded, type=_SpecFolder).folder) is not None:
                self._folders[folder] = None

    def __call__(self, path: str) -> object:
        """The object of `path`. Raises BodyNotFound. Imports its module if need be."""
        module, where, names = parts_of(path)
        if where:
            return find(path)
        if module == MAIN:  # the path names no program, and a lifecycle is a table that runs nothing
            return find(f"{own_name()}:{names}")
        having = {os.path.realpath(folder) for folder in self._folders if lies(folder, module)}
        if len(having) > 1:
            raise BodyNotFound(
                f"{path!r} lies in several folders: {', '.join(sorted(having))}; name it with its folder"
            )
        return find(located(path, next(iter(having), None)))


def within(lifecycles: Lifecycles, folder: str | None) -> Lifecycles:
    """The lifecycles, for a specification in that folder: its modules are searched first."""
    return lifecycles.within(lambda path: located(path, folder))


def named(spec: Workstream, lifecycles: Lifecycles) -> Workstream:
    """A checked workstream, with names in place of its lifecycles."""
    changed: dict[str, object] = {}
    if any(task.lifecycle is not None for task in spec.tasks):
        changed["tasks"] = [by_name(task, lifecycles) for task in spec.tasks]
    if any(tool.breaker is not None and tool.breaker.lifecycle is not None for tool in spec.tools.values()):
        changed["tools"] = {name: _tool(tool, lifecycles) for name, tool in spec.tools.items()}
    spec = by_name(spec, lifecycles)
    return msgspec.structs.replace(spec, **changed) if changed else spec


def by_name(said: SpecT, lifecycles: Lifecycles) -> SpecT:
    """Return the specification with a name in place of its lifecycle."""
    if said.lifecycle is None:
        return said
    name = lifecycles.find(said.lifecycle)[0]
    return said if name == said.lifecycle else msgspec.structs.replace(said, lifecycle=name)


def by_place(said: SpecT, folder: str) -> SpecT:
    """Return the specification of a file in that folder, with the stored form of its lifecycle's path."""
    path = said.lifecycle
    if not isinstance(path, str) or path in LIFECYCLES:
        return said
    kept = located(path, folder, program=False)
    return said if kept == path else msgspec.structs.replace(said, lifecycle=kept)


def _tool(tool: Tool, lifecycles: Lifecycles) -> Tool:
    breaker = tool.breaker
    if breaker is None or breaker.lifecycle is None:
        return tool
    name = lifecycles.find(breaker.lifecycle)[0]
    return msgspec.structs.replace(tool, breaker=msgspec.structs.replace(breaker, lifecycle=name))


def known_by(said: object, more: Iterable[object], resolve: Callable[[str], object]) -> Lifecycles:
    """The lifecycles of a runtime. Raises SpecificationError for invalid ones."""
    lifecycles = within(Lifecycles(resolve=resolve), None)
    try:
        for one in more:
            lifecycles.find(one)
        if said is not None:
            lifecycles.default = lifecycles.find(said)[0]
    except (LookupError, ValueError) as error:
        raise SpecificationError([Finding("lifecycle", str(error.args[0]))], "the runtime's settings") from None
    return lifecycles


def check_loaded(loaded: Loaded, lifecycles: Lifecycles) -> None:
    """Raise SpecificationError if a loaded entity has an unknown lifecycle. Changes nothing."""
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
