"""The layers: machines, then actors, then runtime. Each imports what is below it, and never what is above."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests import folders
from tests.folders import ROOT, imported

MAY_IMPORT = {
    "machines": {"machines"},
    "actors": {"actors", "machines"},
    "runtime": {"runtime", "actors", "machines"},
}

ORDER = """
machines/events machines/phases machines/rows machines/draw machines/machine machines/builtin machines/adapt
machines/lifecycles machines/audit machines machines/docs
actors/user_code actors/times actors/users actors/spec actors/records actors/messages actors/kernel actors/machines
actors/tasks actors/jobs actors/workers actors/restore
runtime/loaded_modules runtime/errors runtime/values runtime/calling runtime/text runtime/dispatch runtime/functions
runtime/processes runtime/journal runtime/standing runtime/observation runtime/host runtime/cluster runtime/commands
runtime/handles runtime/engines runtime/execution runtime/jobs runtime/services runtime/lifespan runtime/snapshot
runtime/runtime runtime/collectors runtime/documents runtime/specfiles runtime/web runtime/testing runtime/prometheus
runtime/otel runtime/client runtime/cli
""".split()  # noqa: SIM905 - a name a word is what a reader compares
"""The folders, and the files beside them: each may import those that stand before it, and no other."""

KNOTS = {
    ("actors/kernel", "actors/jobs"),
    ("actors/kernel", "actors/workers"),
}
"""What imports upwards all the same, until it is mended. Nothing is added here: put what both need into the lower one,
or have the lower one say with a Protocol what it needs."""


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
    upwards = {pair: places for pair, places in found.items() if place[pair[1]] > place[pair[0]]}
    new = [
        f"{own} may not import {other}: {'; '.join(upwards[own, other])}"
        for own, other in sorted(upwards)
        if (own, other) not in KNOTS
    ]
    assert not new, "put what both need into the lower folder, or say with a Protocol there what it needs"
    assert set(upwards) >= KNOTS, f"mended: take them out of KNOTS: {sorted(KNOTS - set(upwards))}"


def test_the_picture_of_the_folders_is_that_of_the_imports() -> None:
    page = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert folders.drawn(page, folders.edges()) == page, "draw it again: python tests/folders.py"


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
