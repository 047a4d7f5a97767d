import assert from "node:assert/strict";
import { test } from "node:test";
import { ago, clock, counted, due, ended, full, groups, iso, listed, moment, safe, setting, span, ticking, timed } from "./text.js";

test("characters that turn the direction of writing or hide are shown as what they are", () => {
  assert.equal(safe("a\u202eb\u0007c\u200bd\u{e0041}"), "a\\u202eb\\x07c\\u200bd\\ue0041");
  assert.equal(safe("<b>&amp;"), "<b>&amp;");
  assert.equal(safe("one\n\ttwo\u001b"), "one\\x0a\\x09two\\x1b");
  assert.equal(safe("one\n\ttwo\u001b", { lines: true }), "one\n\ttwo\\x1b");
  assert.equal(safe(null), "");
});

test("what was cancelled is not counted as skipped", () => {
  const counts = { completed: 3, skipped: 1, cancelled: 2, held: 1, pending: 4 };
  assert.deepEqual(groups(counts).map(({ word, count }) => [word, count]), [["done", 3], ["skipped", 1], ["cancelled", 2], ["waiting", 1]]);
  assert.equal(new Set(groups(counts).map(({ word }) => word)).size, groups(counts).length);
  assert.equal(ended(counts), 6);
});

test("how long something took is told in the two units that matter", () => {
  const told = [0, 0.0004, 0.85, 1.26, 12, 59.6, 185, 7800, 273_600].map(span);
  assert.deepEqual(told, ["0 s", "1 ms", "850 ms", "1.3 s", "12 s", "1 min 00 s", "3 min 05 s", "2 h 10 min", "3 d 4 h"]);
  assert.equal(ticking(-3), "0 s");
});

test("what somebody has set is told as they would say it", () => {
  assert.deepEqual([0.5, 90, 60, 7200, 259_200].map(setting), ["0.5 s", "90 s", "1 min", "2 h", "72 h"]);
});

test("a number that is no time is told as what it is, and throws nothing", () => {
  for (const at of [1e18, -1e18, Infinity, NaN, null]) {
    for (const told of [clock(at), moment(at, 1e9), full(at), iso(at)]) assert.equal(told, `no time: ${at}`);
  }
  assert.equal(iso(0), "1970-01-01T00:00:00.000Z");
});

test("how long ago is told coarsely", () => {
  assert.deepEqual([0, 30, 90, 7200, 200_000].map((past) => ago(1e9 - past, 1e9)), ["now", "30 s ago", "1 min ago", "2 h ago", "2 d ago"]);
});

test("numbers go with their words", () => {
  assert.equal(counted(1, "task"), "1 task");
  assert.equal(counted(20_000, "task"), "20,000 tasks");
  assert.equal(listed(["a", "b", "c"]), "a, b and c");
});

test("times in a text are told by the reader's own clock", () => {
  const now = Date.parse("2026-11-28T12:00:00Z") / 1000;
  const told = timed("held until 2026-11-28T13:05:09.25Z, and not 2026-11-28T13:05:09x", now);
  assert.match(told, /^held until \d\d:05:09 \S+, and not 2026-11-28T13:05:09x$/);
});

test("what is due is told with the name of the reader's zone, and with its day where that is another one", () => {
  const now = Date.parse("2026-01-14T12:00:00Z") / 1000;
  const at = now + 3 * 86400;
  assert.match(due(at, now), /^1[78] Jan \d\d:\d\d:00 [A-Z]+/);
  assert.equal(due(at, now), `${moment(at, now)} ${full(at).split(" ").at(-1)}`);
  assert.equal(due(1e300, now), "no time: 1e+300");
});
