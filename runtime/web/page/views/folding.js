// The items of a run's graph that are drawn: all tasks of a small graph; groups of tasks, opened on demand, of a large one.
//
// Rules:
// - Pure: a graph of `/graph` comes in, items and edges come out; the page's document is not used here.
// - At first at most about LIMIT items are shown, for any number of tasks: the first of these ways that achieves this
//   is used. Every task by itself; tasks of one layer with the same neighbours; tasks of one layer that wait for the
//   same groups; whole layers; ranges of layers.
// - A group opens into at most CHILDREN parts, which can be opened too: so each of 20,000 similar tasks is reached in three
//   steps, and each drawing stays small.
// - A group holds only tasks of adjacent layers, so edges between items never form a cycle.
// - Time: O(tasks + edges), except for sorting the dependencies of a task.

export const LIMIT = 150;
const DENSE = 700; // the most edges between single tasks: with more, the layout takes too long, and is not readable
const EDGES = 450; // the most edges between groups
export const CHILDREN = 36; // the most parts of an opened group
export const SHOWN = 220; // the most items with opened groups; the groups that were opened first close again

/** The first and the last name, without their common prefix in the last one: "render-0001 … 0360". */
function rangeLabel(names, tasks) {
  const first = names[tasks[0]];
  const last = names[tasks[tasks.length - 1]];
  let same = 0;
  while (same < first.length && first[same] === last[same]) same += 1;
  while (same > 0 && /[\p{L}\p{N}]/u.test(first[same - 1])) same -= 1;
  return tasks.length === 1 ? first : `${first} … ${last.slice(same)}`;
}

/** The common prefix of all names, if it is long enough; otherwise the first and the last name. */
function groupLabel(names, tasks) {
  const first = names[tasks[0]];
  let size = first.length;
  for (const task of tasks) {
    const name = names[task];
    while (size > 0 && !name.startsWith(first.slice(0, size))) size -= 1;
  }
  const stem = first.slice(0, size).replace(/\p{N}+$/u, "");
  return stem.length < 3 ? rangeLabel(names, tasks) : `${stem}…`;
}

function group(graph, tasks, kind) {
  if (tasks.length === 1) return taskItem(graph, tasks[0]);
  let low = Infinity;
  let high = -Infinity;
  for (const task of tasks) {
    low = Math.min(low, graph.layers[task]);
    high = Math.max(high, graph.layers[task]);
  }
  return { id: `g${tasks[0]}-${tasks[tasks.length - 1]}-${tasks.length}`, tasks, layers: [low, high], task: null, kind };
}

function taskItem(graph, task) {
  return { id: `t${task}`, tasks: [task], layers: [graph.layers[task], graph.layers[task]], task };
}

/** The label of an item; made when it is drawn, since few groups are drawn. */
export function labelOf(graph, item) {
  item.label ??= item.kind === "alike" ? groupLabel(graph.names, item.tasks) : rangeLabel(graph.names, item.tasks);
  return item.label;
}

/** Tasks by their keys; null as soon as there are more than `most` groups. */
function grouped(graph, keyOf, kind, most = Infinity) {
  const groups = new Map();
  for (let task = 0; task < graph.names.length; task += 1) {
    const key = keyOf(task);
    const mine = groups.get(key);
    if (mine) mine.push(task);
    else if (groups.size === most) return null;
    else groups.set(key, [task]);
  }
  return [...groups.values()].map((tasks) => group(graph, tasks, kind));
}

function dependentsOf(graph) {
  const dependents = graph.names.map(() => []);
  for (let task = 0; task < graph.names.length; task += 1) {
    for (const other of graph.depends_on[task]) dependents[other].push(task);
    for (const other of graph.after[task]) dependents[other].push(~task);
  }
  return dependents;
}

/** Groups by the neighbours of each task, in both directions. */
function byNeighbours(graph) {
  const dependents = dependentsOf(graph);
  const sorted = (numbers) => (numbers.length < 2 ? numbers.join() : [...numbers].sort((a, b) => a - b).join());
  return grouped(graph, (task) =>
    [graph.layers[task], sorted(graph.depends_on[task]), sorted(graph.after[task]), dependents[task].join()].join("|"),
    "alike",
    LIMIT,
  );
}

/** Groups by the groups that each task waits for: parallel chains fold into one chain. */
function bySources(graph) {
  const order = graph.names.map((_, task) => task).sort((a, b) => graph.layers[a] - graph.layers[b] || a - b);
  const numbers = new Map();
  const mine = new Array(graph.names.length);
  const sources = (tasks) => (tasks.length < 2 ? tasks.map((task) => mine[task]).join() : [...new Set(tasks.map((task) => mine[task]))].sort((a, b) => a - b).join());
  for (const task of order) {
    const key = `${graph.layers[task]}|${sources(graph.depends_on[task])}|${sources(graph.after[task])}`;
    if (!numbers.has(key)) numbers.set(key, numbers.size);
    if (numbers.size > LIMIT) return null;
    mine[task] = numbers.get(key);
  }
  return grouped(graph, (task) => mine[task], "alike");
}

function byLayers(graph, most) {
  let layers = 0;
  for (const layer of graph.layers) layers = Math.max(layers, layer + 1);
  const each = Math.ceil(layers / Math.min(layers, most));
  return grouped(graph, (task) => Math.floor(graph.layers[task] / each), "range").sort((a, b) => a.layers[0] - b.layers[0]);
}

/** The items of a graph without opened groups. Groups with the same label are labelled by their first and last name. */
export function roots(graph) {
  const items = folded(graph);
  const called = new Map();
  for (const item of items) called.set(labelOf(graph, item), (called.get(labelOf(graph, item)) ?? 0) + 1);
  for (const item of items) if (called.get(item.label) > 1) item.label = rangeLabel(graph.names, item.tasks);
  return items;
}

function folded(graph) {
  if (graph.names.length <= LIMIT && edgeCount(graph) <= DENSE) return graph.names.map((_, task) => taskItem(graph, task));
  const ways = [
    [() => byNeighbours(graph), EDGES],
    [() => bySources(graph), EDGES],
    [() => byLayers(graph, 60), 3 * 60],
    [() => byLayers(graph, 24), 6 * 24],
  ];
  for (const [way, most] of ways) {
    const items = way();
    if (items && edgesOf(graph, items, ownersOf(graph, items)).length <= most) return items;
  }
  return byLayers(graph, 12);
}

function edgeCount(graph) {
  let count = 0;
  for (let task = 0; task < graph.names.length; task += 1) count += graph.depends_on[task].length + graph.after[task].length;
  return count;
}

function parts(list, count) {
  const each = Math.ceil(list.length / count);
  const all = [];
  for (let from = 0; from < list.length; from += each) all.push(list.slice(from, from + each));
  return all;
}

/** The parts of an opened group: its tasks if they are few, else its layers, else equal parts in the order of the file. */
export function childrenOf(graph, item) {
  if (item.task !== null) return [item];
  if (item.children) return item.children;
  if (item.tasks.length <= CHILDREN) {
    item.children = item.tasks.map((task) => taskItem(graph, task));
  } else if (item.layers[0] < item.layers[1]) {
    const each = Math.ceil((item.layers[1] - item.layers[0] + 1) / CHILDREN);
    const bins = new Map();
    for (const task of item.tasks) {
      const bin = Math.floor((graph.layers[task] - item.layers[0]) / each);
      if (!bins.has(bin)) bins.set(bin, []);
      bins.get(bin).push(task);
    }
    item.children = [...bins.keys()].sort((a, b) => a - b).map((bin) => group(graph, bins.get(bin), "range"));
  } else {
    item.children = parts(item.tasks, Math.min(CHILDREN, Math.ceil(item.tasks.length / 12))).map((some) => group(graph, some, "range"));
  }
  return item.children;
}

/** The items that are drawn when the groups in `open` (ids, the latest last) are opened: [{...item, path: [groups]}]. */
export function shownItems(graph, top, open) {
  const wanted = new Set(open);
  const shown = [];
  const walk = (items, path) => {
    for (const item of items) {
      item.path = path;
      if (item.task === null && wanted.has(item.id)) walk(childrenOf(graph, item), [...path, item]);
      else shown.push(item);
    }
  };
  walk(top, []);
  return shown;
}

/** `open` with one more group. If too many items would be shown, the groups that were opened first close. */
export function opening(graph, top, open, item) {
  const within = new Set([...item.path.map((one) => one.id), item.id]);
  let next = [...open.filter((id) => id !== item.id), item.id];
  while (shownItems(graph, top, next).length > SHOWN) {
    const victim = next.find((id) => !within.has(id));
    if (victim === undefined) break;
    next = next.filter((id) => id !== victim);
  }
  return next;
}

/** The groups to open, outermost first, so that a task is drawn by itself; [] if it is. */
export function pathTo(graph, top, task) {
  const path = [];
  let item = top.find((one) => one.tasks.includes(task));
  while (item && item.task === null) {
    item.path = [...path];
    path.push(item);
    item = childrenOf(graph, item).find((one) => one.tasks.includes(task));
  }
  return path;
}

/** The item of each task, by the number of the task. */
export function ownersOf(graph, items) {
  const owners = new Int32Array(graph.names.length).fill(-1);
  items.forEach((item, number) => {
    for (const task of item.tasks) owners[task] = number;
  });
  return owners;
}

/** The edges between items: [{from, to, count, hard}]; hard if one of them is a `depends_on`, and not only `after`. */
export function edgesOf(graph, items, owners) {
  const edges = new Map();
  const add = (source, target, hard) => {
    const from = owners[source];
    const to = owners[target];
    if (from === to || from < 0 || to < 0) return;
    const key = from * items.length + to;
    const edge = edges.get(key);
    if (!edge) edges.set(key, { from, to, count: 1, hard });
    else {
      edge.count += 1;
      edge.hard ||= hard;
    }
  };
  for (let task = 0; task < graph.names.length; task += 1) {
    for (const other of graph.depends_on[task]) add(other, task, true);
    for (const other of graph.after[task]) add(other, task, false);
  }
  return [...edges.values()];
}
