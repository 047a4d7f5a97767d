// Has a graph laid out: at once where that takes a blink, else in a worker, so that the page goes on answering.

const AT_ONCE = 60; // nodes and edges

const library = Promise.all([import("../vendor/graph.js"), import("./layout.js")]); // while the graph is being read
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

/** Where everything stands, as `place` in layout.js says it. */
export async function arrange(asking) {
  if (asking.sizes.length + asking.edges.length <= AT_ONCE) return here(asking);
  const edges = asking.edges.map(({ from, to }) => ({ from, to }));
  const number = (asked += 1);
  const answer = new Promise((resolve) => waiting.set(number, resolve));
  (worker ?? hired()).postMessage({ ...asking, edges, number });
  return answer;
}
