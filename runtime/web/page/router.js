// The router: the present view is in the address, after the "#". So the page works under any prefix, and the buttons back
// and forward, bookmarks and links work as usual.
//
// `#/runs/nightly%2F7?show=log&task=build` is {parts: ["runs", "nightly/7"], query: {show: "log", task: "build"}}.

import { signal } from "./vendor/ui.js";

/** Read an address: its parts and its query, decoded. Text that cannot be decoded is used unchanged. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#?\/?/, "").split("?", 2);
  return { parts: path.split("/").filter(Boolean).map(decoded), query: Object.fromEntries(new URLSearchParams(query)) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The address of a view: href(["runs", id], {show: "log"}). Values that are null, undefined or "" are left out. */
export function href(parts, query = {}) {
  const told = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const asked = new URLSearchParams(told).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${asked && `?${asked}`}`;
}

/** The present address, as `parse` reads it. */
export const route = signal(parse(location.hash));

// The scroll position of each entry of the history. A view is drawn when its data have arrived, which is too late for the
// browser to restore the position itself.
const depths = new Map();
let entry = history.state?.entry ?? 0;
let entries = entry;
let depth = 0;
history.scrollRestoration = "manual";
history.replaceState({ entry }, "");

/** The scroll position at which the present view begins: its last one after "back" or "forward", otherwise 0. */
export const arrival = () => depth;

addEventListener("scroll", () => depths.set(entry, scrollY), { passive: true });
addEventListener("hashchange", () => {
  if (history.state?.entry === undefined) history.replaceState({ entry: (entries += 1) }, "");
  entry = history.state.entry;
  depth = depths.get(entry) ?? 0;
  route.value = parse(location.hash);
});

/** Go to a view. `replace` replaces the present entry of the history: for filters, which change at each key. */
export function go(parts, query, { replace = false } = {}) {
  const address = href(parts, query);
  if (replace) {
    history.replaceState(history.state, "", address);
    route.value = parse(address);
  } else if (location.hash !== address) {
    location.hash = address;
  }
}

/** Change the query of the present address. */
export function ask(changes, options = { replace: true }) {
  const { parts, query } = route.peek();
  go(parts, { ...query, ...changes }, options);
}
