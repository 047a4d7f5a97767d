"""Modules beside a specification: found by their folder, each under a unique module name.

Two folders may have modules of the same name, and each specification means its own. So such a module is not `steps` in
`sys.modules`, but `callboard.runtime.functions.folder_modules.FOLDER.steps`, where FOLDER encodes the folder. Every
process with this library can import that name: so other processes can unpickle objects of such a module.

Rules
-----
- If Python's own search finds the same file under the module's plain name (its folder is in `sys.path`), or the
  program has imported that file already, that module is used: there is no second copy.
- An import inside a module beside a specification searches its folder first, as in a script. This holds for every
  `import` statement in such a module; not for `importlib.import_module("name")`, which knows no folder.
- A folder without an `__init__.py` counts only if no module of that name exists elsewhere: it may hold data.
- `sys.path` is not changed, so other code does not find these modules by chance.
"""

from __future__ import annotations

import builtins
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module, invalidate_caches
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..loaded_modules import imported

if TYPE_CHECKING:
    from types import ModuleType

__path__: list[str] = []  # a package, whose modules are found by `_Finder`
_HEAD = f"{__name__}."
_absent: dict[tuple[str, str], int] = {}  # (folder, absent name) -> the folder's time of change
ABSENT_KEPT = 10_000
"""The number of absent names that are remembered."""
_TICK = 2_000_000_000  # nanoseconds: two changes within this time may give a folder the same time
_SPELLED = rb"__|_([0-9a-f]{2})"


def lies(folder: str, name: str) -> bool:
    """Whether a folder has the module of that dotted name. Imports nothing."""
    return _lying(folder, _top(name)) is not None


def file_of(folder: str, name: str) -> str | None:
    """The file of the module of that name in a folder."""
    found = None if "." in name else _lying(folder, name)
    return None if found is None else found.origin


def module_in(folder: str, name: str) -> ModuleType:
    """Import the module of that dotted name from a folder. Raises ModuleNotFoundError, and the module's errors."""
    folder, top = os.path.realpath(folder), _top(name)
    own = _own(folder, top)
    if own is None and _lying(folder, top) is None:
        raise ModuleNotFoundError(f"there is no module {top!r} in {folder}", name=top)
    full = name if own is None else own + name[len(top) :]
    module: ModuleType | None = imported(full)
    return import_module(full) if module is None else module


def place_of(name: str) -> tuple[str, str] | None:
    """The plain name and folder of a module with a unique name in `sys.modules`; None for other modules."""
    if not name.startswith(_HEAD):
        return None
    token, _, module = name.removeprefix(_HEAD).partition(".")
    return (module, _folder(token)) if module else None


def plain(name: str) -> str:
    """A module's plain name."""
    place = place_of(name)
    return name if place is None else place[0]


def same_file(one: str | None, other: str | None) -> bool:
    """Whether two paths lead to one file."""
    if one is None or other is None:
        return False
    if one == other:
        return True
    try:
        return Path(one).samefile(other)
    except (OSError, ValueError):  # one of them does not exist, or is in an archive
        return os.path.realpath(one) == os.path.realpath(other)


def _top(name: str) -> str:
    return name.partition(".")[0]


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # the file's name is too long
        return False


def _lying(folder: str, top: str) -> ModuleSpec | None:
    """The import spec of a module in a folder."""
    if top in sys.builtin_module_names:
        return None
    found = PathFinder.find_spec(top, [folder])
    if found is None and (
        _is_there(Path(folder, f"{top}.py")) or _is_there(Path(folder, top))
    ):  # the folder has changed since the last search
        invalidate_caches()
        found = PathFinder.find_spec(top, [folder])
    if found is not None and found.origin is None:  # a folder without `__init__.py`
        elsewhere = _elsewhere(top)
        if elsewhere is not None and elsewhere[0] is not None:
            return None
    return found


def _own(folder: str, top: str) -> str | None:
    """The unique name of a module in a folder; None if its plain name finds it."""
    own = f"{_HEAD}{_token(folder)}.{top}"
    if own in sys.modules:
        return own
    found = _lying(folder, top)
    if found is None:
        return None
    elsewhere = _elsewhere(top)
    if elsewhere is None:
        return own
    origin, places = elsewhere
    if found.origin is not None:
        return None if same_file(origin, found.origin) else own
    mine = [*(found.submodule_search_locations or ())]
    return None if any(same_file(one, other) for one in places for other in mine) else own


def _own_of(folder: str, top: str) -> str | None:
    """The same for `import` statements, which may run often: an absent name is searched again only after the folder has
    changed.
    """
    try:
        changed = os.stat(folder).st_mtime_ns  # noqa: PTH116 - it is fast
    except OSError:
        changed = 0
    if _absent.get((folder, top)) == changed:
        return None
    own = _own(folder, top)
    if own is None and time.time_ns() - changed > _TICK and _lying(folder, top) is None:
        if len(_absent) >= ABSENT_KEPT:
            _absent.clear()
        _absent[folder, top] = changed
    return own


def _elsewhere(top: str) -> tuple[str | None, list[str]] | None:
    """The file and folders of the module that Python finds under a plain name; None if there is none."""
    module = sys.modules.get(top)
    if module is not None:
        return getattr(module, "__file__", None), [*getattr(module, "__path__", ())]
    try:
        found = find_spec(top)
    except (ImportError, ValueError, AttributeError):  # an error of another import finder
        return None
    return None if found is None else (found.origin, [*(found.submodule_search_locations or ())])


# -- unique names ------------------------------------------------------------------------------------------------


def _token(folder: str) -> str:
    """A folder encoded as a part of a module's name: "/" as "__", other special characters as "_" and their code."""
    return "".join(
        chr(byte) if chr(byte).isalnum() and byte < 128 else "__" if byte == ord("/") else f"_{byte:02x}"
        for byte in os.fsencode(folder)
    )


def _folder(token: str) -> str:
    def read(found: re.Match[bytes]) -> bytes:
        return b"/" if found[1] is None else bytes.fromhex(found[1].decode())

    return os.fsdecode(re.sub(_SPELLED, read, token.encode()))


class _Finder:  # no `MetaPathFinder`: to import `importlib.abc` takes as long as the rest of this file's imports
    """Finds modules with a unique name."""

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        """The import spec of a unique module name; None for all other names."""
        if not fullname.startswith(_HEAD):
            return None
        token, _, module = fullname.removeprefix(_HEAD).partition(".")
        if not module:
            package = ModuleSpec(fullname, None, is_package=True)
            package.submodule_search_locations = [_folder(token)]
            return package
        found = PathFinder.find_spec(fullname, path, target)
        if found is not None and isinstance(found.loader, SourceFileLoader):
            found.loader = _Loader(found.loader, _folder(token))
        return found


class _Loader(SourceFileLoader):
    """Runs a module so that its imports search its folder first.

    Python's own loader runs it, or that of another library with an import hook, such as beartype, which pydantic-ai's
    MCP client imports.
    """

    def __init__(self, loader: SourceFileLoader, folder: str) -> None:
        super().__init__(loader.name, loader.path)
        self._loader, self._folder = loader, folder

    def exec_module(self, module: ModuleType) -> None:
        """Run the module."""
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": partial(_import, self._folder)}
        self._loader.exec_module(module)


def _import(  # noqa: PLR0917 - as `__import__` has them
    folder: str,
    name: str,
    globals: Mapping[str, object] | None = None,  # noqa: A002 - as `__import__` has them
    locals: Mapping[str, object] | None = None,  # noqa: A002
    fromlist: Sequence[str] | None = (),
    level: int = 0,
) -> Any:
    """`__import__` for modules of that folder."""
    top = _top(name)
    own = None if level else _own_of(folder, top)
    if own is None:
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    found = builtins.__import__(own + name[len(top) :], globals, locals, fromlist or (), 0)
    return found if fromlist else sys.modules[own]


sys.meta_path.insert(0, _Finder())
