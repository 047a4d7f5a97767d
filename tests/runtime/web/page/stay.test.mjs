import assert from "node:assert/strict";
import { test } from "node:test";
import { stay } from "./stay.js";

const item = (id, state = "running") => ({ id, state });
const items = (ids) => [...ids].map((id) => item(id));
const stayed = (kept, now, whole = true) => {
  const { rows, past, ...counts } = stay(items(kept), items(now), ({ id }) => id, whole);
  return { rows: rows.map(({ id }) => id).join(""), past: [...past].join(""), ...counts };
};

test("new items before or between the rows wait, and are counted", () => {
  assert.deepEqual(stayed("abc", "xaybc"), { rows: "abc", past: "", fresh: 2, gone: 0, unread: 0 });
});

test("what comes after the last row is taken at once, even where that one has left", () => {
  assert.deepEqual(stayed("abc", "abcd"), { rows: "abcd", past: "", fresh: 0, gone: 0, unread: 0 });
  assert.deepEqual(stayed("abc", "xabd"), { rows: "abcd", past: "c", fresh: 1, gone: 1, unread: 0 });
});

test("a row that left stays as it was, and others are as they are now", () => {
  const { rows } = stay(items("ab"), [item("b", "completed")], ({ id }) => id, true);
  assert.deepEqual(rows, [item("a"), item("b", "completed")]);
});

test("rows keep their order where the items change theirs", () => {
  assert.deepEqual(stayed("abc", "cab"), { rows: "abc", past: "", fresh: 0, gone: 0, unread: 0 });
});

test("behind the end of what was read nothing is known to have left", () => {
  assert.deepEqual(stayed("abc", "xya", false), { rows: "abc", past: "bc", fresh: 2, gone: 0, unread: 2 });
  assert.deepEqual(stayed("abc", "xac", false), { rows: "abc", past: "b", fresh: 1, gone: 1, unread: 0 });
});

test("where all rows left all items are new, and where there was none all are shown", () => {
  assert.deepEqual(stayed("abc", "xyz", false), { rows: "abc", past: "abc", fresh: 3, gone: 0, unread: 3 });
  assert.deepEqual(stayed("", "xyz"), { rows: "xyz", past: "", fresh: 0, gone: 0, unread: 0 });
});
