// Lays a graph out: a small one at once, a large one in a worker, so that the page stays responsive.

const AT_ONCE = 60; // nodes and edges

const library = Promise.all([import("../vendor/graph.js"), import("./layout.js")]); // loaded while the graph is being read
let worker = null;
let asked = 0;
const waiting = new Map();

function hired() {
  worker = new Worker(new URL("./layout-worker.js", import.meta.url), { type: "module" });
  worker.addEventListener("message", ({ data }) => {
    waiting.get(data.number)?.(data.placed);
    waiting.delete(data.number);
  });
  return worker;
}

async function here({ sizes, edges, direction, aspect }) {
  const [dagre, { place }] = await library;
  return place(dagre, sizes, edges, direction, aspect);
}

/** The positions of all items and edges, as `place` in layout.js returns them. */
export async function arrange(asking) {
  if (asking.sizes.length + asking.edges.length <= AT_ONCE) return here(asking);
  const edges = asking.edges.map(({ from, to }) => ({ from, to }));
  const number = (asked += 1);
  const answer = new Promise((resolve) => waiting.set(number, resolve));
  (worker ?? hired()).postMessage({ ...asking, edges, number });
  return answer;
}
