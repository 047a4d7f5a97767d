"""The graph of imports between the library's folders, and its picture in ARCHITECTURE.md.

Rules
-----
- A folder is a folder of a layer with all its content (`runtime/engines`). A file beside the folders of its layer is a
  node of the graph, too (`runtime/host`), and so is a layer's `__init__` (`machines`).
- Imports inside functions count, and so do imports for type checkers.
- `python tests/folders.py` draws the picture again. It leaves out arrows that follow from others: if a folder imports
  A, and A imports B, it has no arrow to B.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = ("machines", "actors", "runtime")
BEGIN = "<!-- From here on drawn from the imports: python tests/folders.py -->"
END = "<!-- As far as here. -->"


@cache
def imported(path: Path, root: Path = ROOT) -> tuple[tuple[int, str], ...]:
    """The imports of library modules in a file: each with its line and its full name (`machines.task`)."""
    return tuple(_imported(path, root))


def _imported(path: Path, root: Path) -> Iterator[tuple[int, str]]:
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


@cache
def folder_of(name: str, root: Path = ROOT) -> str:
    """The folder of an imported name, or of a file: `runtime/engines` for `runtime.engines.usage.used`."""
    layer, _, rest = name.partition(".")
    first = rest.partition(".")[0].replace("__init__", "")
    there = root / layer / first
    return f"{layer}/{first}" if first and (there.is_dir() or there.with_suffix(".py").is_file()) else layer


def edges(root: Path = ROOT) -> dict[tuple[str, str], list[str]]:
    """The pairs of folders of which the first imports the second, each with the places of these imports."""
    found = defaultdict[tuple[str, str], list[str]](list)
    for layer in LAYERS:
        for path in sorted((root / layer).rglob("*.py")):
            own = folder_of(".".join(path.relative_to(root).with_suffix("").parts), root)
            for line, name in imported(path, root):
                other = folder_of(name, root)
                if other != own and name.split(".")[0] in LAYERS:
                    found[own, other].append(f"{path.relative_to(root)}:{line} imports {name}")
    return dict(found)


def reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """All folders that can be reached from `start`."""
    seen, waiting = set[str](), [start]
    while waiting:
        for other in graph.get(waiting.pop(), ()):
            if other not in seen:
                seen.add(other)
                waiting.append(other)
    return seen


def picture(found: Mapping[tuple[str, str], object]) -> str:
    """The folders as a mermaid drawing: arrows point to the imported folder."""
    graph: dict[str, set[str]] = {}
    for own, other in found:
        graph.setdefault(own, set()).add(other)
        graph.setdefault(other, set())
    lines = ["```mermaid", "flowchart TD", *(f'    {_id(name)}["{name}"]' for name in sorted(graph))]
    for name in sorted(graph):
        implied = {deep for other in graph[name] for deep in reach(graph, other)}
        lines += [f"    {_id(name)} --> {_id(other)}" for other in sorted(graph[name] - implied)]
    return "\n".join([*lines, "```"])


def _id(name: str) -> str:
    return name.replace("/", "_")


def drawn(text: str, found: Mapping[tuple[str, str], object]) -> str:
    """ARCHITECTURE.md with the present picture."""
    before, rest = text.split(BEGIN)
    return f"{before}{BEGIN}\n\n{picture(found)}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    page = ROOT / "ARCHITECTURE.md"
    page.write_text(drawn(page.read_text(encoding="utf-8"), edges()), encoding="utf-8")
