// Lays a graph out beside the page: a layout of hundreds of nodes takes longer than a frame.

import { graphlib, layout } from "../vendor/graph.js";
import { place } from "./layout.js";

addEventListener("message", ({ data: { number, sizes, edges, direction, aspect } }) => {
  postMessage({ number, placed: place({ layout, graphlib }, sizes, edges, direction, aspect) });
});
