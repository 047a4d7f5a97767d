// The rows of a list while they must not move. Pure.

/**
 * The rows of `kept` in their order, each with its present content in `items`, then the items that come after all of them.
 * `whole`: whether `items` holds all items, and not only the first ones. Returns
 *   rows    the rows to show; rows that are not in `items` any more keep their old content
 *   past    the keys of the rows that are not in `items` any more
 *   fresh   the number of items that are not shown, since their place is between or before the rows
 *   gone    how many rows of `past` have certainly left the list
 *   unread  how many rows of `past` may still be in the list, after the last item that was read
 */
export function stay(kept, items, key, whole) {
  const present = new Map(items.map((item) => [key(item), item]));
  const known = new Set(kept.map(key));
  const last = items.findLastIndex((item) => known.has(key(item)));
  const after = last >= 0 || !kept.length ? items.slice(last + 1) : [];
  const past = new Set([...known].filter((one) => !present.has(one)));
  const reached = whole ? kept.length : kept.findLastIndex((row) => present.has(key(row)));
  const gone = kept.slice(0, Math.max(0, reached)).filter((row) => past.has(key(row))).length;
  return {
    rows: [...kept.map((row) => present.get(key(row)) ?? row), ...after],
    past, gone, unread: past.size - gone,
    fresh: items.length - after.length - (known.size - past.size),
  };
}
