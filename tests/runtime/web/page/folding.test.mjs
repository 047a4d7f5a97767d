import assert from "node:assert/strict";
import { test } from "node:test";
import * as library from "./vendor/graph.js";
import { edgesOf, labelOf, LIMIT, opening, ownersOf, pathTo, roots, shownItems, SHOWN } from "./views/folding.js";
import { pathOf, place } from "./views/layout.js";

/** A graph of tasks whose dependencies the functions tell, as `/graph` has it. */
function graphOf(count, needs, after = () => [], name = (task) => `task-${String(task).padStart(5, "0")}`) {
  const graph = { names: [], depends_on: [], after: [], layers: [] };
  for (let task = 0; task < count; task += 1) {
    const [hard, soft] = [needs(task), after(task)];
    graph.names.push(name(task));
    graph.depends_on.push(hard);
    graph.after.push(soft);
    graph.layers.push(Math.max(-1, ...[...hard, ...soft].map((other) => graph.layers[other])) + 1);
  }
  return graph;
}

const range = (from, to) => Array.from({ length: to - from }, (_, at) => from + at);
const FAN = graphOf(20_000, (task) => (task === 0 ? [] : task < 19_999 ? [0] : range(1, 19_999)));
const GRAPHS = {
  "a fan": FAN,
  "lanes": graphOf(20_000, (task) => (task < 5000 ? [] : [task - 5000])),
  "a chain": graphOf(20_000, (task) => (task ? [task - 1] : [])),
  "loose tasks": graphOf(20_000, () => []),
  "a thicket": graphOf(20_000, (task) => (task < 50 ? [] : [0, 1, 2].map((at) => (task * 7919 + at * 104_729) % task))),
  "layers": graphOf(20_000, (task) => (task < 200 ? [] : range(0, 5).map((at) => (Math.floor(task / 200) - 1) * 200 + ((task * 31 + at * 17) % 200)))),
};

const drawn = (graph, items) => edgesOf(graph, items, ownersOf(graph, items));

for (const [name, graph] of Object.entries(GRAPHS)) {
  const top = roots(graph);

  test(`${name} of 20,000 tasks is drawn as few items that hold each task once, and whose edges go forward`, () => {
    const items = shownItems(graph, top, []);
    assert.ok(items.length <= LIMIT, `${items.length} items`);
    assert.equal(items.reduce((sum, item) => sum + item.tasks.length, 0), 20_000);
    assert.ok(ownersOf(graph, items).every((owner) => owner >= 0));
    for (const edge of drawn(graph, items)) assert.ok(items[edge.from].layers[1] < items[edge.to].layers[0]);
    assert.equal(new Set(items.map((item) => labelOf(graph, item))).size, items.length);
  });

  test(`any task of ${name} is reached by opening a few groups, and what is drawn stays small`, () => {
    const path = pathTo(graph, top, 12_345);
    assert.ok(path.length <= 4, `${path.length} groups`);
    const open = path.reduce((ids, item) => opening(graph, top, ids, item), []);
    const items = shownItems(graph, top, open);
    assert.ok(items.some((item) => item.task === 12_345));
    assert.ok(items.length <= SHOWN);
    for (const edge of drawn(graph, items)) assert.ok(items[edge.from].layers[1] < items[edge.to].layers[0]);
  });
}

test("a small graph is not folded", () => {
  const items = roots(graphOf(LIMIT, (task) => (task ? [task - 1] : [])));
  assert.equal(items.length, LIMIT);
  assert.ok(items.every((item) => item.task !== null));
});

test("alike tasks are called by what their names have in common", () => {
  const lanes = graphOf(400, (task) => (task < 200 ? [] : [task - 200]), undefined, (task) => (task < 200 ? `render-${task}` : `encode-${task}`));
  assert.deepEqual(roots(lanes).map((item) => labelOf(lanes, item)), ["render-…", "encode-…"]);
});

test("groups opened first close when too much would be shown", () => {
  const top = roots(FAN);
  let open = [];
  for (let step = 0; step < 20; step += 1) {
    const items = shownItems(FAN, top, open);
    open = opening(FAN, top, open, items.filter((item) => item.task === null)[step % 3]);
    assert.ok(shownItems(FAN, top, open).length <= SHOWN);
  }
});

test("an edge between groups is soft only if all within it are", () => {
  const graph = graphOf(4, (task) => (task === 3 ? [0] : []), (task) => (task === 2 ? [0] : task === 3 ? [1] : []));
  const items = roots(graph);
  const kinds = drawn(graph, items).map(({ from, to, hard }) => [from, to, hard]);
  assert.deepEqual(kinds.sort(), [[0, 2, false], [0, 3, true], [1, 3, false]]);
});

test("a layout puts sources before what waits for them, and edges from side to side", () => {
  const sizes = range(0, 3).map(() => [100, 40]);
  const placed = place(library, sizes, [{ from: 0, to: 1 }, { from: 0, to: 2 }], "LR");
  const [first, second] = placed.nodes;
  assert.ok(first.x + first.width < second.x);
  assert.deepEqual(placed.edges[0][0], [first.x + 100, first.y + 20]);
  assert.deepEqual(placed.edges[0].at(-1), [second.x, second.y + 20]);
  const down = place(library, sizes, [{ from: 0, to: 1 }], "TB");
  assert.ok(down.nodes[0].y + 40 < down.nodes[1].y);
  assert.ok(down.nodes[2].y >= down.nodes[1].y + 40, "what has no edge stands beneath");
});

test("tasks without edges stand in a grid", () => {
  const placed = place(library, range(0, 90).map(() => [100, 40]), [], "LR");
  assert.equal(new Set(placed.nodes.map(({ x, y }) => `${x} ${y}`)).size, 90);
  assert.ok(placed.width / placed.height > 1 && placed.width / placed.height < 2.5);
  assert.equal(placed.edges.length, 0);
});

test("a path is smooth along the direction", () => {
  assert.equal(pathOf([[0, 0], [10, 20]], "LR"), "M0,0C5,0 5,20 10,20");
  assert.equal(pathOf([[0, 0], [10, 20]], "TB"), "M0,0C0,10 10,10 10,20");
});

test("what stands beneath one another keeps its order", () => {
  for (const direction of ["LR", "TB"]) {
    const edges = range(1, 9).flatMap((at) => [{ from: 0, to: at }, { from: at, to: 9 }]);
    const { nodes } = place(library, range(0, 10).map(() => [100, 40]), edges, direction);
    const across = nodes.slice(1, 9).map((node) => (direction === "LR" ? node.y : node.x));
    assert.deepEqual(across, [...across].sort((a, b) => a - b));
  }
});
