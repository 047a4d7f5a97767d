// Which rows a list shows whose rows are not to move. Pure.

/**
 * The rows of `kept` in their order, each as it is in `items` by now, then the items that come after all of them.
 * `whole`: whether `items` is all that there is, and not its beginning. Returns
 *   rows    what to show; those that are not in `items` any more as they were
 *   past    the keys of these
 *   fresh   how many items are left out: they would stand between or before the rows
 *   gone    how many of `past` are known to have left the list
 *   unread  how many of `past` may only stand behind the end of `items`
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
