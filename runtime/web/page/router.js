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

addEventListener("hashchange", () => {
  route.value = parse(location.hash);
});

/** Go to a place. `replace` keeps the present one out of the history: for filters that are typed. */
export function go(parts, query, { replace = false } = {}) {
  const address = href(parts, query);
  if (replace) {
    history.replaceState(null, "", address);
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
