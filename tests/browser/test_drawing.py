"""The places of a graph's boxes. A real browser computes the layout, by the page's own module."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page

from .theatre import Theatre

Visit = Callable[..., Page]
Drawing = tuple[list[list[float]], list[dict[str, int]]]
SIDES = (("x", "width"), ("y", "height"))
SLACK = 1e-6  # what adding up floats leaves
PLACED = """async ([drawings, direction]) => {
  const [library, { place }] = await Promise.all([import("/vendor/graph.js"), import("/views/layout.js")]);
  return drawings.map(([sizes, edges]) => place(library, sizes, edges, direction));
}"""
MIRRORED: Drawing = (
    [[width, 46] for width in (120, 170, 116, 232, 170, 220)],
    [{"from": 0, "to": to} for to in (1, 2, 5)],
)
"""One whose layout is mirrored, so that its tasks stand in their order; two tasks have no edges."""


def drawn(seed: int) -> Drawing:
    """Some tasks, with few edges."""
    chance = random.Random(seed)
    count = chance.randint(3, 10)
    pairs = [(one, other) for one in range(count) for other in range(one + 1, count) if chance.random() < 0.25]
    sizes: list[list[float]] = [[chance.uniform(100, 250), 46] for _ in range(count)]
    return sizes, [{"from": one, "to": other} for one, other in pairs]


def overlap(one: dict[str, float], other: dict[str, float]) -> bool:
    return all(one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in SIDES)


@pytest.mark.parametrize("direction", ["LR", "TB"])
def test_no_box_of_a_graph_is_drawn_over_another(theatre: Theatre, visit: Visit, direction: str) -> None:
    drawings = [MIRRORED, *map(drawn, range(200))]
    placed: list[dict[str, Any]] = visit(theatre.url).evaluate(PLACED, [drawings, direction])
    for drawing, one in zip(drawings, placed, strict=True):
        boxes = one["nodes"]
        over = [(a, b) for b in range(len(boxes)) for a in range(b) if overlap(boxes[a], boxes[b])]
        assert not over, drawing
        for at, size in SIDES:
            assert all(box[at] > -SLACK and box[at] + box[size] < one[size] + SLACK for box in boxes), drawing
