"""A machine as SVG, without a layout program: states are columns, rows are arrows.

Rules
-----
- Rows stand from top to bottom in the order of the table, which is the order in which they are tried. So no arrow
  hides another, however many rows there are, and the same machine gives the same text, byte for byte.
- A colour shows the severity of a row, dashes show that it is forced, a double frame shows a terminal state.
- For a live entity, the states that it was in are filled, and the rows that it did not take are pale.
- The page has its own background, and is legible in any theme. It names no font, script or link that
  a viewer would have to fetch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from .diagram import ASIDE, DrawableMachine, Path, label

if TYPE_CHECKING:
    from ..rows import Transition

# Pixels. LETTER is an upper bound of a letter's average width, so no box is too narrow.
LETTER: Final = 7.0
GAP: Final = 24
HEAD: Final = 56
ROW: Final = 34
BOX: Final = 28
LOOP: Final = 26

COLOURS: Final = {"info": "#334155", "warning": "#b45309", "error": "#b91c1c", "critical": "#86198f"}


def svg(machine: DrawableMachine, path: Path | None = None) -> str:
    """Return `machine` as an SVG document, without a trailing newline."""
    return _document(machine.name, *_page(machine, path))


def svg_of_all(name: str, machines: Sequence[DrawableMachine]) -> str:
    """Return several machines as one SVG document, one below the other. name: its title."""
    lines: list[str] = []
    right = bottom = 0.0
    for machine in machines:
        width, height, drawn = _page(machine)
        below = bottom + 2 * GAP
        title = f'<text x="{GAP}" y="{bottom + GAP:g}" font-size="14">{_escaped(machine.name)}</text>'
        lines += [title, f'<g transform="translate(0 {below:g})">', *drawn, "</g>"]
        right, bottom = max(right, width), below + height
    return _document(name, right, bottom, lines)


def _document(title: str, width: float, height: float, lines: Iterable[str]) -> str:
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {size} font-family="sans-serif" font-size="12">',
            f"<title>{_escaped(title)}</title>",
            f'<rect width="{width:g}" height="{height:g}" fill="#ffffff"/>',
            *lines,
            "</svg>",
        ]
    )


def _page(machine: DrawableMachine, path: Path | None = None) -> tuple[float, float, list[str]]:
    """The width and height of a machine's drawing, and its lines."""
    texts = [label(machine, row, path) for row in machine.transitions]
    columns, width = _columns(machine, max((len(text) for text in texts), default=0))
    height = 2 * HEAD + ROW * (len(texts) + 0.5)
    lines = [*_heads(machine, columns, height, path), *_begin(columns[machine.initial])]
    for number, (row, text) in enumerate(zip(machine.transitions, texts, strict=True), start=1):
        lines += _arrow(row, text, columns, HEAD + ROW * number, width, _colour(row, path))
    return width, height, lines


def _columns(machine: DrawableMachine, longest: int) -> tuple[dict[str, float], float]:
    """The middle of each state's column, and the width of the page; the longest label fits."""
    middle: dict[str, float] = {}
    right = float(GAP)
    for state in machine.states:
        wide = _wide(state) + GAP
        middle[state] = right + wide / 2
        right += wide + GAP
    return middle, max(right + LOOP, longest * LETTER + 2 * GAP)


def _heads(machine: DrawableMachine, columns: dict[str, float], height: float, path: Path | None) -> Iterator[str]:
    """Each state's frame, above its line and again below it, since a page may be long."""
    for name, state in machine.states.items():
        x, wide = columns[name], _wide(name) + GAP
        fill = (None if path is None else path.colour(name)) or "#f8fafc"
        yield f'<path d="M{x:g} {HEAD - BOX / 2:g}V{height - HEAD + BOX / 2:g}" stroke="#cbd5e1"/>'
        for top in (BOX / 2, height - BOX * 1.5):
            for inset in (0, 3) if state.terminal else (0,):
                yield (
                    f'<rect x="{x - wide / 2 + inset:g}" y="{top + inset:g}" width="{wide - 2 * inset:g}" '
                    f'height="{BOX - 2 * inset}" rx="6" fill="{fill}" stroke="#334155"/>'
                )
            y = top + BOX / 2 + 4
            yield f'<text x="{x:g}" y="{y:g}" text-anchor="middle" fill="#0f172a">{_escaped(name)}</text>'


def _begin(x: float) -> Iterator[str]:
    """The dot above the initial state."""
    yield f'<circle cx="{x:g}" cy="5" r="3" fill="#0f172a"/><path d="M{x:g} 5V{BOX / 2:g}" stroke="#0f172a"/>'


def _colour(row: Transition, path: Path | None) -> str:
    return COLOURS[row.severity] if path is None or path.took(row) else ASIDE


def _arrow(  # noqa: PLR0917 - what an arrow is made of
    row: Transition, text: str, columns: dict[str, float], y: float, width: float, colour: str
) -> Iterator[str]:
    start, end = columns[row.source], columns[row.target]
    dashes = ' stroke-dasharray="5 3"' if row.forced else ""
    if start == end:
        line = f"M{start:g} {y - 5:g}h{LOOP - 8}q8 0 8 5t-8 5H{end + 7:g}"
        tip, turn = y + 5, -1
    else:
        turn = 1 if end > start else -1
        line = f"M{start:g} {y:g}H{end - 7 * turn:g}"
        tip = y
    yield f'<circle cx="{start:g}" cy="{tip if start != end else y - 5:g}" r="2.5" fill="{colour}"/>'
    yield f'<path d="{line}" fill="none" stroke="{colour}" stroke-width="1.5"{dashes}/>'
    yield f'<path d="M{end:g} {tip:g}l{-8 * turn} -4v8z" fill="{colour}"/>'
    half = len(text) * LETTER / 2
    middle = min(max((start + end) / 2, half + GAP / 2), width - half - GAP / 2)
    # The halo is a text of its own: a program without `paint-order` would hide the text.
    halo = 'stroke="#ffffff" stroke-width="4" stroke-linejoin="round"'
    for look in (halo, f'fill="{colour}"'):
        yield f'<text x="{middle:g}" y="{y - 8:g}" text-anchor="middle" {look}>{_escaped(text)}</text>'


def _wide(text: str) -> float:
    return len(text) * LETTER


def _escaped(text: str) -> str:  # `html.escape` would import a table of 2,000 entities
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
