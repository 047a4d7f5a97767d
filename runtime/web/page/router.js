// Where the reader is, kept in the address behind the "#": so the page works under any prefix, and back and forward,
// bookmarks and links do what they should.
//
// `#/runs/nightly%2F7?show=log&task=build` is {parts: ["runs", "nightly/7"], query: {show: "log", task: "build"}}.

import { signal } from "./vendor/ui.js";

/** Read an address: its parts and its query, decoded. What cannot be decoded is taken as it is. */
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

/** The address of a place: href(["runs", id], {show: "log"}). What is null, undefined or "" in the query is left out. */
export function href(parts, query = {}) {
  const told = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const asked = new URLSearchParams(told).toString();
  return `#/${parts.map(encodeURIComponent).join("/")}${asked && `?${asked}`}`;
}

/** The present place, as `parse` reads it. */
export const route = signal(parse(location.hash));

// How far down one was in each entry of the history: a view is drawn when its data are there, which is too late for the
// browser to do it.
const depths = new Map();
let entry = history.state?.entry ?? 0;
let entries = entry;
let depth = 0;
history.scrollRestoration = "manual";
history.replaceState({ entry }, "");

/** How far down the present view is to begin: where one left it, if one has come back to it, else 0. */
export const arrival = () => depth;

addEventListener("scroll", () => depths.set(entry, scrollY), { passive: true });
addEventListener("hashchange", () => {
  if (history.state?.entry === undefined) history.replaceState({ entry: (entries += 1) }, "");
  entry = history.state.entry;
  depth = depths.get(entry) ?? 0;
  route.value = parse(location.hash);
});

/** Go to a place. `replace` keeps the present one out of the history: for filters that are typed. */
export function go(parts, query, { replace = false } = {}) {
  const address = href(parts, query);
  if (replace) {
    history.replaceState(history.state, "", address);
    route.value = parse(address);
  } else if (location.hash !== address) {
    location.hash = address;
  }
}

/** Change the query of the present place. */
export function ask(changes, options = { replace: true }) {
  const { parts, query } = route.peek();
  go(parts, { ...query, ...changes }, options);
}
