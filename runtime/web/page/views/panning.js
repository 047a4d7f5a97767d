// Moving and zooming a drawing: by mouse (drag, wheel), by touch (one finger, two to zoom) and by keyboard.
//
// Rules:
// - The position of the view is an attribute of one element: moving does not draw the items again.
// - A press becomes a drag after SLACK px; before that it is a click on the item below it.

import { useEffect, useMemo, useRef, useState } from "../vendor/ui.js";

const SCALES = [0.08, 2];
const LEGIBLE = [0.5, 0.62]; // the smallest scale at the beginning, on a phone and on other screens
const EDGE = 24; // px of margin around the fitted items
const SLACK = 5;
const NARROW = 620; // px of width below which a graph is laid out from top to bottom

const clamp = (value, [low, high]) => Math.min(high, Math.max(low, value));

/**
 * The view of a drawing. onResize() is called when the size of its box changes. The refs: `box` for the element around it, `svg`
 * for the drawing, `layer` for the part that is moved.
 */
export function useView(onResize) {
  const box = useRef(null);
  const svg = useRef(null);
  const layer = useRef(null);
  const [narrow, setNarrow] = useState(() => innerWidth < NARROW + 100);
  const latest = useRef(onResize);
  latest.current = onResize;
  const view = useMemo(() => viewOf(box, svg, layer), []);
  useEffect(() => {
    const watcher = new ResizeObserver(() => {
      if (!box.current) return;
      setNarrow(box.current.clientWidth < NARROW);
      latest.current();
    });
    watcher.observe(box.current);
    const release = hold(box.current, view);
    return () => {
      watcher.disconnect();
      release();
    };
  }, []);
  return Object.assign(view, { box, svg, layer, narrow });
}

function viewOf(box, svg, layer) {
  const at = { k: 1, x: 0, y: 0 };
  let wanted = null; // the item to bring into view when it exists
  let refocus = false;
  const apply = () => layer.current?.setAttribute("transform", `translate(${at.x},${at.y}) scale(${at.k})`);
  const size = () => [box.current.clientWidth, box.current.clientHeight];
  const moveTo = (k, x, y) => {
    Object.assign(at, { k, x, y });
    apply();
  };
  const item = (id) => svg.current?.querySelector(`[data-item="${CSS.escape(id)}"]`);
  return {
    touched: false, // whether a person has moved it
    apply,
    moveBy: (dx, dy) => moveTo(at.k, at.x + dx, at.y + dy),
    /** Zoom around a point of the box; its middle by default. */
    zoom(factor, px, py) {
      this.touched = true;
      const [width, height] = size();
      const k = clamp(at.k * factor, SCALES);
      const [cx, cy] = [px ?? width / 2, py ?? height / 2];
      moveTo(k, cx - ((cx - at.x) * k) / at.k, cy - ((cy - at.y) * k) / at.k);
    },
    /** Show the whole drawing. */
    fit(placed, least = SCALES[0]) {
      const [width, height] = size();
      const k = clamp(Math.min(1, (width - 2 * EDGE) / placed.width, (height - 2 * EDGE) / placed.height), [least, 1]);
      const middle = (room, own) => (own * k + 2 * EDGE <= room ? (room - own * k) / 2 : EDGE);
      moveTo(k, middle(width, placed.width), middle(height, placed.height));
      return k;
    },
    /** Show the whole drawing if it is legible, otherwise the most interesting part. */
    begin(placed, node) {
      this.touched = false;
      const k = this.fit(placed, LEGIBLE[size()[0] < NARROW ? 0 : 1]);
      const [width, height] = size();
      if (!node) return;
      const along = (room, own, from, length) => own * k + 2 * EDGE <= room ? null : clamp(room / 2 - (from + length / 2) * k, [room - own * k - EDGE, EDGE]);
      moveTo(k, along(width, placed.width, node.x, node.width) ?? at.x, along(height, placed.height, node.y, node.height) ?? at.y);
    },
    /** Move as little as needed to show a node. */
    reach(node) {
      if (!node) return;
      const [width, height] = size();
      const k = Math.max(at.k, 0.5);
      const shift = (from, length, room) => from < EDGE ? EDGE - from : from + length > room - EDGE ? room - EDGE - from - length : 0;
      const x = k === at.k ? at.x : width / 2 - (node.x + node.width / 2) * k;
      const y = k === at.k ? at.y : height / 2 - (node.y + node.height / 2) * k;
      moveTo(k, x + shift(node.x * k + x, node.width * k, width), y + shift(node.y * k + y, node.height * k, height));
    },
    /** The position of a node on the screen; `put` moves a node to a position. */
    seen: (node) => ({ x: node.x * at.k + at.x, y: node.y * at.k + at.y }),
    middle: () => ({ x: size()[0] / 2, y: size()[1] / 2 }),
    put(node, place) {
      this.touched = true;
      moveTo(at.k, place.x - node.x * at.k, place.y - node.y * at.k);
    },
    later(id) {
      wanted = id;
    },
    wanted() {
      const id = wanted;
      wanted = null;
      return id;
    },
    focus: (id) => item(id)?.focus({ preventScroll: true }),
    /** Set the focus on the present item again after the next drawing. */
    refocus() {
      refocus = true;
    },
    restore(id) {
      apply();
      if (refocus && id) item(id)?.focus({ preventScroll: true });
      refocus = false;
    },
  };
}

/** Let a box be dragged, pinched and zoomed. Returns a function that ends this. */
function hold(box, view) {
  const pointers = new Map();
  let moved = false;
  const at = (event) => {
    const { left, top } = box.getBoundingClientRect();
    return [event.clientX - left, event.clientY - top];
  };
  const spread = () => {
    const [[ax, ay], [bx, by]] = [...pointers.values()];
    return { gap: Math.hypot(ax - bx, ay - by), x: (ax + bx) / 2, y: (ay + by) / 2 };
  };
  const on = {
    pointerdown(event) {
      if (event.button !== 0) return;
      if (pointers.size === 0) moved = false;
      pointers.set(event.pointerId, at(event));
    },
    pointermove(event) {
      const was = pointers.get(event.pointerId);
      if (!was) return;
      const now = at(event);
      if (!moved && pointers.size === 1 && Math.hypot(now[0] - was[0], now[1] - was[1]) < SLACK) return;
      if (!moved) box.setPointerCapture(event.pointerId);
      moved = true;
      view.touched = true;
      box.classList.add("dragged");
      const before = pointers.size === 2 ? spread() : null;
      pointers.set(event.pointerId, now);
      if (before) {
        const after = spread();
        view.moveBy(after.x - before.x, after.y - before.y);
        if (before.gap > 0) view.zoom(after.gap / before.gap, after.x, after.y);
      } else view.moveBy(now[0] - was[0], now[1] - was[1]);
    },
    pointerup(event) {
      pointers.delete(event.pointerId);
      if (!pointers.size) box.classList.remove("dragged");
    },
    pointercancel(event) {
      on.pointerup(event);
    },
    wheel(event) {
      event.preventDefault();
      view.touched = true;
      const unit = event.deltaMode === 1 ? 16 : 1;
      const [x, y] = at(event);
      if (event.shiftKey) view.moveBy(-(event.deltaX || event.deltaY) * unit, 0);
      else view.zoom(Math.exp((-event.deltaY * unit) / (event.ctrlKey ? 120 : 500)), x, y);
    },
    dragstart: (event) => event.preventDefault(),
  };
  const swallow = (event) => {
    if (!moved) return;
    event.preventDefault();
    event.stopPropagation();
    moved = false;
  };
  for (const [name, heard] of Object.entries(on)) box.addEventListener(name, heard, { passive: false });
  box.addEventListener("click", swallow, true);
  return () => {
    for (const [name, heard] of Object.entries(on)) box.removeEventListener(name, heard);
    box.removeEventListener("click", swallow, true);
  };
}

/** The nearest node in a direction ([-1, 0] is left): by the distance along it, then across; itself if there is none. */
export function nextTo(nodes, from, [dx, dy]) {
  const middle = (node) => [node.x + node.width / 2, node.y + node.height / 2];
  const [x, y] = middle(nodes[from]);
  let best = from;
  let least = Infinity;
  nodes.forEach((node, at) => {
    if (at === from) return;
    const [ox, oy] = middle(node);
    const along = (ox - x) * dx + (oy - y) * dy;
    const across = Math.abs((ox - x) * dy) + Math.abs((oy - y) * dx);
    if (along <= 1 || across > along * 2 + 60) return;
    const cost = along + 2 * across;
    if (cost < least) [best, least] = [at, cost];
  });
  return best;
}
