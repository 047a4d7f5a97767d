"""The layers: machines, then actors, then runtime. Each imports what is below it, and never what is above."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "machines": {"machines"},
    "actors": {"actors", "machines"},
    "runtime": {"runtime", "actors", "machines"},
}


def imported(path: Path, root: Path = ROOT) -> Iterator[tuple[int, str]]:
    """Each import of ours in a file: its line, and what it names, from the root down (`machines.task`)."""
    package = path.relative_to(root).parent.parts
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names = [(alias.name, 0) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            # `from .. import x` names x itself
            names = [(f"{module}.{alias.name}".lstrip("."), node.level) for alias in node.names]
        else:
            continue
        for name, level in names:
            if level:
                up = package[: len(package) - level + 1]
                yield node.lineno, ".".join((*up, name))
            elif name.split(".")[0] == "callboard":
                yield node.lineno, name


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
