"""The layers: machines, then actors, then runtime. Each imports only the layers before it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import pytest
from tests import first_imports, folders
from tests.folders import ROOT, imported

MAY_IMPORT = {
    "machines": {"machines"},
    "actors": {"actors", "machines"},
    "runtime": {"runtime", "actors", "machines"},
}

ORDER = """
machines/events machines/keywords machines/phases machines/rows machines/draw machines/machine machines/builtin
machines/adapt machines/lifecycles machines/audit machines machines/docs
actors/user_code actors/times actors/users actors/spec actors/records actors/messages actors/kernel actors/machines
actors/tasks actors/workers actors/jobs actors/supervisor actors/restore
runtime/extras runtime/loaded_modules runtime/errors runtime/values runtime/calling runtime/text runtime/dispatch
runtime/functions runtime/processes runtime/journal runtime/status runtime/observation runtime/host runtime/cluster
runtime/commands runtime/handles runtime/engines runtime/flows runtime/execution runtime/jobs runtime/services
runtime/lifespan runtime/snapshot runtime/runtime runtime/collectors runtime/documents runtime/specfiles runtime/web
runtime/agents runtime/testing runtime/prometheus runtime/otel runtime/client runtime/cli
""".split()  # noqa: SIM905 - a name a word is what a reader compares
"""The folders, and the files beside them: each may import those that stand before it, and no other."""


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="each module is imported by a fork")


@pytest.mark.parametrize("layer", MAY_IMPORT)
def test_imports_point_downwards(layer: str) -> None:
    files = sorted((ROOT / layer).rglob("*.py"))
    assert files
    for path in files:
        for line, name in imported(path):
            where = f"{path.relative_to(ROOT)}:{line} imports {name}"
            assert not name.startswith("callboard"), f"{where}: inside the library imports are relative"
            above = name.split(".")[0] in MAY_IMPORT and name.split(".")[0] not in MAY_IMPORT[layer]
            assert not above, f"{where}: {layer} may import {', '.join(sorted(MAY_IMPORT[layer]))}"


def test_folders_import_what_stands_before_them_and_nothing_else() -> None:
    """No cycle between folders, imports for type checkers included."""
    place = {name: number for number, name in enumerate(ORDER)}
    found = folders.edges()
    unplaced = {name for pair in found for name in pair} - set(place)
    assert not unplaced, f"new folders: {sorted(unplaced)}: ORDER says which others each may import"
    upwards = [
        f"{own} may not import {other}: {'; '.join(places)}"
        for (own, other), places in sorted(found.items())
        if place[other] > place[own]
    ]
    assert not upwards, "put what both need into the lower folder, or say with a Protocol there what it needs"


def test_the_picture_of_the_folders_is_that_of_the_imports() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert folders.drawn(page, folders.edges()) == page, "draw it again: python tests/folders.py"


def not_first(groups: Sequence[Sequence[str]], path: Path) -> dict[str, str]:
    """The modules below `path` that cannot be the first import of a process, each with its error.

    groups: of names; a module imports those of its own group and of earlier groups only.
    """
    said = "\n\n".join("\n".join(group) for group in groups)
    done = subprocess.run(
        [sys.executable, first_imports.__file__], input=said, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(path)}, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return dict(line.split("\t") for line in done.stdout.splitlines())


@needs_fork
@pytest.mark.slow
def test_each_module_can_be_the_first_import_of_a_process() -> None:
    """No module needs another one that needs it: it would depend on which of the two is imported first."""
    library = ROOT / "src" / "callboard"
    files = [*library.glob("*.py"), *(path for layer in MAY_IMPORT for path in (ROOT / layer).rglob("*.py"))]
    parts = [path.relative_to(library if library in path.parents else ROOT).with_suffix("").parts for path in files]
    names = sorted({".".join(("callboard", *part)).removesuffix(".__init__") for part in parts})
    names = [name for name in names if not name.endswith(".__main__")]  # a program: importing it runs it
    assert len(names) > 400

    def place(name: str) -> int:
        """Of its folder. A layer whose `__init__` imports its folders is one group; public names come last."""
        inner = name.removeprefix("callboard").removeprefix(".")
        layer = inner.partition(".")[0]
        if inner and layer not in MAY_IMPORT:
            return len(ORDER)
        folder = layer if layer in ORDER else folders.folder_of(inner)
        return ORDER.index(folder) if folder in ORDER else -1  # an `__init__` that imports nothing

    groups = [list(group) for _, group in groupby(sorted(names, key=lambda name: (place(name), name)), place)]
    refused = not_first(groups, ROOT / "src")
    assert {name: error for name, error in refused.items() if not error.startswith("lacks ")} == {}


@needs_fork
def test_a_module_that_cannot_be_the_first_import_is_seen(tmp_path: Path) -> None:
    files = {
        "__init__": "",
        "upper": "from .lower import low\ndef up(): pass",
        "lower": "from . import upper\nfrom .upper import up\ndef low(): pass",
        "extra": "import no_such_package",
        "told": "try:\n    import no_such.package\nexcept ImportError:\n    raise ImportError('install the extra')",
        "gone": "from . import nothing",
        "missing": "import knotted.nothing",
        "ends": "raise SystemExit",
        "sound": "import json",
    }
    (tmp_path / "knotted").mkdir()
    for name, text in files.items():
        (tmp_path / "knotted" / f"{name}.py").write_text(text)
    refused = not_first([["knotted"], [f"knotted.{name}" for name in files if name != "__init__"]], tmp_path)
    assert refused.pop("knotted.extra") == "lacks no_such_package"
    assert refused.pop("knotted.told") == "lacks no_such"
    told = {name: error.partition(":")[0] for name, error in refused.items()}
    assert told == {
        "knotted.upper": "ImportError",
        "knotted.lower": "ImportError",
        "knotted.gone": "ImportError",
        "knotted.missing": "ModuleNotFoundError",
        "knotted.ends": "SystemExit",
    }


def test_the_rule_sees_what_it_should(tmp_path: Path) -> None:
    file = tmp_path / "machines" / "deep" / "file.py"
    file.parent.mkdir(parents=True)
    file.write_text(
        "import callboard.runtime\n"
        "import asyncio\n"
        "from ...actors import kernel\n"
        "from ... import runtime\n"
        "from ..task import TASK\n"
        "from . import sibling\n"
        "def late():\n"
        "    from callboard import Runtime\n"
    )
    assert sorted(imported(file, tmp_path)) == [
        (1, "callboard.runtime"),
        (3, "actors.kernel"),
        (4, "runtime"),
        (5, "machines.task.TASK"),
        (6, "machines.deep.sibling"),
        (8, "callboard.Runtime"),
    ]
