import assert from "node:assert/strict";
import { test } from "node:test";
import { enter, spanOf, told, visibleBars, zoomed } from "./views/bars.js";

function lived(...steps) {
  const bars = [];
  for (const [phase, at, attempt] of steps) enter(bars, phase, at, attempt);
  return bars;
}

const LIFE = [["queued", 1], ["running", 2, 1], ["retrying", 5, 1], ["queued", 7, 1], ["running", 8, 2], ["completed", 9, 2]];

test("stays become bars, and an end closes the last one", () => {
  assert.deepEqual(lived(...LIFE).map(({ phase, from, to }) => [phase, from, to]), [
    ["queued", 1, 2], ["running", 2, 5], ["retrying", 5, 7], ["queued", 7, 8], ["running", 8, 9],
  ]);
});

test("transitions that come twice or late change nothing", () => {
  const bars = lived(...LIFE);
  const was = structuredClone(bars);
  for (const [phase, at, attempt] of LIFE) assert.equal(enter(bars, phase, at, attempt), false);
  assert.deepEqual(bars, was);
  const lasting = lived(["queued", 1], ["running", 2, 1]);
  assert.equal(enter(lasting, "running", 2, 1), false);
  assert.equal(lasting.length, 2);
});

test("the axis spans what there is, and never nothing", () => {
  const [from, to] = spanOf([lived(...LIFE), []], 1, 9);
  assert.ok(from < 1 && from > 0 && to > 9 && to < 10);
  const [begin, end] = spanOf([], 100, 100);
  assert.ok(end - begin >= 1);
  assert.deepEqual(zoomed([0, 100], 0.5, 0), [0, 50]);
  assert.deepEqual(zoomed([0, 100], 0, 0.5, 2), [49, 51]);
});

test("only what is in view is drawn, and what is too thin to tell apart once", () => {
  const many = Array.from({ length: 5000 }, (_, at) => ({ phase: "running", from: at, to: at + 0.5 }));
  assert.ok(visibleBars(many, (at) => at / 100, 5000, 50).length <= 30);
  assert.deepEqual(visibleBars(many, (at) => at - 9000, 5000, 50), []);
});

test("a row is told in words", () => {
  const say = (bar) => bar.phase;
  assert.equal(told([], 0, String, say), "has not begun");
  assert.equal(told(lived(["queued", 1], ["running", 2, 1]), 6, String, say), "queued 1, running 4 so far");
});
