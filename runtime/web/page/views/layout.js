// The positions of a graph's items, and the paths of its edges: dagre's layered layout, or a grid if there are no edges.
//
// Rules:
// - Pure, and the library is an argument: so the layout runs in the page, in a worker and in a test.
// - Ranks are computed by network simplex for small graphs (its edges are shorter), else by longest path, which takes a
//   third of the time.
// - Lengths are in the units of the drawing; x and y of a node are its upper left corner.

const SMALL = 140; // nodes and edges
const GAP = 14;

/** sizes: [[width, height]...] of the items; edges: [{from, to}...]; direction: "LR" or "TB"; aspect: width to height. */
export function place({ layout, graphlib }, sizes, edges, direction, aspect = 1.6) {
  const linked = new Set(edges.flatMap((edge) => [edge.from, edge.to]));
  const loose = sizes.map((_, number) => number).filter((number) => !linked.has(number));
  const placed = linked.size ? layered({ layout, graphlib }, sizes, linked, edges, direction) : empty(sizes.length);
  upright(placed, linked, direction); // before the grid is added: it mirrors within the size of the linked items
  beside(placed, sizes, loose, direction, aspect);
  return placed;
}

/** Mirror the layout if this puts more neighbours of a rank into the order of the items. */
function upright(placed, linked, direction) {
  const [along, across, extent] = direction === "LR" ? ["x", "y", "height"] : ["y", "x", "width"];
  const ranks = new Map();
  for (const number of [...linked].sort((a, b) => placed.nodes[a][across] - placed.nodes[b][across])) {
    const node = placed.nodes[number];
    const rank = Math.round(node[along] + node[extent === "height" ? "width" : "height"] / 2);
    if (!ranks.has(rank)) ranks.set(rank, []);
    ranks.get(rank).push(number);
  }
  let kept = 0;
  for (const rank of ranks.values()) for (let at = 1; at < rank.length; at += 1) kept += rank[at] > rank[at - 1] ? 1 : -1;
  if (kept >= 0) return;
  const coordinate = direction === "LR" ? 1 : 0;
  for (const number of linked) placed.nodes[number][across] = placed[extent] - placed.nodes[number][across] - placed.nodes[number][extent];
  for (const points of placed.edges) for (const point of points) point[coordinate] = placed[extent] - point[coordinate];
}

/** The middle of the side where edges enter (0) or leave (1): the library lets them end anywhere on the border. */
function side({ x, y, width, height }, direction, end) {
  return direction === "LR" ? [x + end * width, y + height / 2] : [x + width / 2, y + end * height];
}

function empty(count) {
  return { nodes: new Array(count), edges: [], width: 0, height: 0 };
}

function layered({ layout, graphlib }, sizes, linked, edges, direction) {
  const drawing = new graphlib.Graph();
  drawing.setGraph({
    rankdir: direction,
    ranker: linked.size + edges.length <= SMALL ? "network-simplex" : "longest-path",
    nodesep: direction === "LR" ? 14 : 18,
    ranksep: direction === "LR" ? 56 : 44,
    edgesep: 8,
  });
  for (const number of linked) {
    drawing.setNode(String(number), { width: sizes[number][0], height: sizes[number][1] });
  }
  for (const edge of edges) drawing.setEdge(String(edge.from), String(edge.to), {});
  layout(drawing);
  const placed = { ...empty(sizes.length), width: drawing.graph().width, height: drawing.graph().height };
  for (const number of linked) {
    const { x, y, width, height } = drawing.node(String(number));
    placed.nodes[number] = { x: x - width / 2, y: y - height / 2, width, height };
  }
  placed.edges = edges.map((edge) => {
    const points = drawing.edge(String(edge.from), String(edge.to)).points.map(({ x, y }) => [x, y]);
    points[0] = side(placed.nodes[edge.from], direction, 1);
    points[points.length - 1] = side(placed.nodes[edge.to], direction, 0);
    return points;
  });
  return placed;
}

/** Place the items without edges, as a grid after the others. */
function beside(placed, sizes, loose, direction, aspect) {
  if (!loose.length) return;
  const width = Math.max(...loose.map((number) => sizes[number][0])) + GAP;
  const height = Math.max(...loose.map((number) => sizes[number][1])) + GAP;
  const below = placed.height ? placed.height + 3 * GAP : 0;
  const wanted = Math.ceil(Math.sqrt((loose.length * height * aspect) / width));
  const columns = Math.max(1, placed.width ? Math.floor(placed.width / width) : 0, Math.min(loose.length, wanted));
  loose.forEach((number, place) => {
    const [own, tall] = sizes[number];
    const x = (place % columns) * width;
    placed.nodes[number] = { x, y: below + Math.floor(place / columns) * height, width: own, height: tall };
  });
  placed.width = Math.max(placed.width, Math.min(columns, loose.length) * width - GAP);
  placed.height = below + Math.ceil(loose.length / columns) * height - GAP;
}

/** The SVG path of an edge through its points: it begins and ends in the direction of the layout. */
export function pathOf(points, direction) {
  const parts = [`M${fixed(points[0])}`];
  for (let number = 1; number < points.length; number += 1) {
    const [x0, y0] = points[number - 1];
    const [x1, y1] = points[number];
    const first = direction === "LR" ? [(x0 + x1) / 2, y0] : [x0, (y0 + y1) / 2];
    const second = direction === "LR" ? [(x0 + x1) / 2, y1] : [x1, (y0 + y1) / 2];
    parts.push(`C${fixed(first)} ${fixed(second)} ${fixed([x1, y1])}`);
  }
  return parts.join("");
}

const fixed = ([x, y]) => `${Math.round(x * 10) / 10},${Math.round(y * 10) / 10}`;
