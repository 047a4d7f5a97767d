// Lists whose rows stay where they are while somebody is on them, so that a press opens what was read.
//
//     const still = useStill(items, { whole: list.next.value === null, settled: !list.busy.value });
//     html`<${Still} of=${still}> ... still.rows.map(...) ... <//>`
//
//     useHeld()            the same for a list that keeps its rows itself: see `views/log.js`
//
// Rules:
// - While the pointer is over a list, the focus or a touch is in it, or its beginning is scrolled out of view, none of its
//   rows moves. New ones wait until somebody asks for them by a button, those that left stay as they were (`past`),
//   without their buttons.
// - What stands in a row is kept up all the time, and what comes after the last row is taken at once: neither moves a row.
// - A touch lasts until something else is touched: a finger is off the list before it comes down on what was read.
// - The button lies over the list and takes no room of its own. What grows above a list is scrolled away.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/ui.js";
import { stay } from "./stay.js";
import { number } from "./text.js";

const MOST = 1000; // items that are read so that rows are kept up; those behind stay as they were
const ROWS = ":is(.row:not(.heads), .card)";

/** Whether somebody is on a list: {ref, held}. The ref goes to an element that is there as long as the component. */
export function useHeld() {
  const ref = useRef(null);
  const why = useRef(new Set()).current;
  const [, redraw] = useState(0);
  useLayoutEffect(() => watched(ref.current, why, () => redraw((count) => count + 1)), []);
  return { ref, held: why.size > 0 };
}

/** Keep in `why` what holds the list in `box`, tell of changes, and keep its top where it is meanwhile. */
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
  /** Scroll by so much, also where the page is not long enough for it. */
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
  hear(document, "focusin", ({ target }) => tell("focus", box.contains(target))); // what is removed with the focus tells nothing
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
 * The rows of a list that stay while somebody is on it: {rows, past, fresh, gone, load(), ref}.
 *
 * key: what an item is known by; whole, more: whether these are all, and what reads more of them; about: what was asked for,
 * as a list of values: where one is another, all rows are new; settled: whether `items` are of what is asked for by now;
 * grows: whether a row gets higher by what stands in it, and is to keep the height that it had; fixed: whether a row stays as
 * it was, since what is pressed in it would be another thing.
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

/** Have a row keep the height that it has, or not. */
function sized(row, keeps) {
  if (keeps === (row.style.height !== "")) return;
  row.style.height = keeps ? `${row.getBoundingClientRect().height}px` : "";
  row.style.overflowY = keeps ? "auto" : "";
}

/** A list, with the button that loads what waits. */
export const Still = ({ of, children }) => html`<div class="still" ref=${of.ref}><${News} fresh=${of.fresh} gone=${of.gone} load=${of.load} box=${of.ref} />${children}</div>`;

/** The button that loads what waits, over the list in `box`. */
export function News({ fresh, gone = 0, load, box }) {
  if (!fresh && !gone) return null;
  const words = [fresh && `${number(fresh)} new`, gone && `${number(gone)} gone`].filter(Boolean).join(", ");
  const press = (event) => {
    load();
    if (box.current.getBoundingClientRect().top < 0) box.current.scrollIntoView({ block: "start" });
    if (event.detail === 0) requestAnimationFrame(() => box.current?.querySelector(`${ROWS} :is(a, button)`)?.focus()); // by the keyboard
  };
  return html`<div class="news"><button type="button" class="main" onClick=${press}>${words}</button></div>`;
}
