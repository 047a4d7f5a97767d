import assert from "node:assert/strict";
import { test } from "node:test";
import { EmittedText, KEPT } from "./views/emitted-text.js";

const shown = (kept) => kept.blocks.map(({ text }) => text).join("") + kept.unfinished;

test("a text is the same however it comes, and holds nothing that could hide or reorder it", () => {
  const text = "Hello \u001b[31mred\u001b[0m <b>\u202e\nsecond\u200b line\r\nlast";
  for (let size = 1; size <= text.length; size++) {
    const kept = new EmittedText();
    for (let at = 0; at < text.length; at += size) kept.add(text.slice(at, at + size));
    assert.equal(shown(kept), "Hello red <b>\\u202e\nsecond\\u200b line\nlast");
    assert.equal(kept.size, text.length);
  }
});

test("the last megabyte is kept, of one line, too", () => {
  for (const part of ["word ".repeat(1000), `${"x".repeat(4999)}\n`]) {
    const kept = new EmittedText();
    for (let count = 0; count < 400; count++) kept.add(part);
    assert.ok(shown(kept).length <= KEPT + 16_384);
    assert.ok(shown(kept).length > KEPT / 2);
    assert.ok(kept.dropped);
    assert.equal(new Set(kept.blocks.map(({ at }) => at)).size, kept.blocks.length);
    assert.equal(kept.size, 400 * part.length);
    kept.clear();
    assert.ok(kept.empty && !kept.dropped);
  }
});

test("what is missing is told where it is missing", () => {
  const kept = new EmittedText();
  kept.add("before");
  kept.gap(1234);
  kept.add("after");
  assert.equal(shown(kept), "before\n[1,234 characters are missing here]\nafter");
});
