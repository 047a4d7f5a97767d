// A worker that lays a graph out: with hundreds of nodes this takes longer than a frame.

import { graphlib, layout } from "../vendor/graph.js";
import { place } from "./layout.js";

addEventListener("message", ({ data: { number, sizes, edges, direction, aspect } }) => {
  postMessage({ number, placed: place({ layout, graphlib }, sizes, edges, direction, aspect) });
});
