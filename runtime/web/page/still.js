// Lists whose rows do not move while a person uses them, so that a click opens the row that the person has read.
//
//     const still = useStill(items, { whole: list.next.value === null, settled: !list.busy.value });
//     html`<${Still} of=${still}> ... still.rows.map(...) ... <//>`
//
//     useHeld()            only whether a person uses the list, for a list that keeps its rows itself: see `views/log.js`
//
// Rules:
// - While the pointer is over a list, the focus or a touch is in it, or its top is scrolled out of view, none of its
//   rows moves. New rows wait until the person presses a button; rows that left the list stay unchanged (`past`), but
//   without their buttons.
// - The content of a row is always updated, and new rows after the last one are added at once: neither moves a row.
// - A touch counts until another element is touched, since a finger leaves the screen between two touches of the list.
// - The button lies over the list and takes no space. If content above the list grows, the page is scrolled by as much.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/ui.js";
import { stay } from "./stay.js";
import { number } from "./text.js";

const MOST = 1000; // the most items that are read to update rows; rows after these stay unchanged
const ROWS = ":is(.row:not(.heads), .card)";

/** Whether a person uses a list: {ref, held}. ref is for an element that exists as long as the component. */
export function useHeld() {
  const ref = useRef(null);
  const why = useRef(new Set()).current;
  const [, redraw] = useState(0);
  useLayoutEffect(() => watched(ref.current, why, () => redraw((count) => count + 1)), []);
  return { ref, held: why.size > 0 };
}

/** Keep in `why` the reasons to hold the list in `box`, report changes, and keep the list's top at its place. */
function watched(box, why, changed) {
  const stop = new AbortController();
  const hear = (target, name, heard, capture = false) => target.addEventListener(name, heard, { signal: stop.signal, passive: true, capture });
  const tell = (reason, holds) => {
    if (holds === why.has(reason)) return;
    if (holds) why.add(reason);
    else why.delete(reason);
    if (!why.size) page.style.paddingBottom = box.style.marginTop = "";
    changed();
  };
  const page = box.closest(".page");
  let top = box.getBoundingClientRect().top;
  const scrolled = () => {
    top = box.getBoundingClientRect().top;
    tell("scroll", top < 0);
  };
  const resized = () => {
    const by = box.getBoundingClientRect().top - top;
    if (why.size && by !== 0 && !box.closest("aside")) shift(by);
    top = box.getBoundingClientRect().top;
  };
  /** Scroll by so many px, also if the page is too short for it. */
  const shift = (by) => {
    const { scrollHeight, clientHeight } = document.documentElement;
    const [below, above] = [by - (scrollHeight - clientHeight - scrollY), -by - scrollY];
    const free = Math.max(0, clientHeight - page.getBoundingClientRect().bottom);
    if (by > 0 && below > 0) page.style.paddingBottom = `${parseFloat(page.style.paddingBottom || 0) + free + below}px`;
    if (by < 0 && above > 0) box.style.marginTop = `${parseFloat(box.style.marginTop || 0) + above}px`;
    scrollBy(0, by);
  };
  hear(box, "pointerenter", ({ pointerType }) => tell("pointer", pointerType === "mouse"));
  hear(box, "pointerleave", () => tell("pointer", false));
  hear(document, "pointerdown", ({ target, pointerType }) => tell("touch", pointerType !== "mouse" && box.contains(target)), true);
  hear(document, "focusin", ({ target }) => tell("focus", box.contains(target))); // an element that is removed while it has the focus sends no "focusout"
  hear(box, "focusout", ({ relatedTarget }) => tell("focus", box.contains(relatedTarget)));
  hear(document, "scroll", scrolled, true);
  const watcher = new ResizeObserver(resized);
  watcher.observe(document.body);
  watcher.observe(page);
  tell("pointer", matchMedia("(hover: hover)").matches && box.matches(":hover"));
  tell("focus", box.contains(document.activeElement));
  tell("scroll", top < 0);
  return () => {
    stop.abort();
    watcher.disconnect();
  };
}

/**
 * The rows of a list, which stay while a person uses it: {rows, past, fresh, gone, load(), ref}.
 *
 * key: returns the key of an item. whole: whether `items` holds all items; more: reads more of them. about: the filter,
 * as a list of values: if one changes, all rows are new. settled: whether `items` belong to this filter already.
 * grows: whether a row may become higher by its content, and must keep its height. fixed: whether a row keeps its old
 * content, since its buttons would act on something else.
 */
export function useStill(items, { key = ({ id }) => id, whole = true, more = null, about = [], settled = true, grows = false, fixed = false } = {}) {
  const { ref, held } = useHeld();
  const [, redraw] = useState(0);
  const kept = useRef({ rows: items, about });
  const holds = held && settled && about.every((one, at) => one === kept.current.about[at]);
  const seen = holds ? stay(kept.current.rows, items, key, whole) : { rows: items, past: new Set(), fresh: 0, gone: 0, unread: 0 };
  const rows = holds && fixed ? [...kept.current.rows, ...seen.rows.slice(kept.current.rows.length)] : seen.rows;
  kept.current = { rows, about };
  const load = () => {
    kept.current = { rows: items, about };
    redraw((count) => count + 1);
  };
  useEffect(() => {
    if (seen.unread > 0 && more && items.length < MOST) more();
  }, [items, seen.unread > 0]);
  useLayoutEffect(() => {
    if (grows) for (const row of ref.current.querySelectorAll(ROWS)) sized(row, holds);
  });
  return { ...seen, rows, ref, load };
}

/** Fix the height of a row, or release it. */
function sized(row, keeps) {
  if (keeps === (row.style.height !== "")) return;
  row.style.height = keeps ? `${row.getBoundingClientRect().height}px` : "";
  row.style.overflowY = keeps ? "auto" : "";
}

/** A list, with the button that shows the waiting rows. */
export const Still = ({ of, children }) => html`<div class="still" ref=${of.ref}><${News} fresh=${of.fresh} gone=${of.gone} load=${of.load} box=${of.ref} />${children}</div>`;

/** The button that shows the waiting rows, over the list in `box`. */
export function News({ fresh, gone = 0, load, box }) {
  if (!fresh && !gone) return null;
  const words = [fresh && `${number(fresh)} new`, gone && `${number(gone)} gone`].filter(Boolean).join(", ");
  const press = (event) => {
    load();
    if (box.current.getBoundingClientRect().top < 0) box.current.scrollIntoView({ block: "start" });
    if (event.detail === 0) requestAnimationFrame(() => box.current?.querySelector(`${ROWS} :is(a, button)`)?.focus()); // pressed by the keyboard
  };
  return html`<div class="news"><button type="button" class="main" onClick=${press}>${words}</button></div>`;
}
