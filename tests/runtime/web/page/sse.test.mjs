import assert from "node:assert/strict";
import { test } from "node:test";
import { sseParser } from "./sse.js";

const STREAM = ': hello\nretry: 2000\nid: 7\n\nevent: transition\nid: 8\ndata: {"a":1}\n\n: heartbeat\nid: 12\n\ndata: one\ndata: two\r\n\r\n';

test("a stream gives the same messages however it is cut", () => {
  for (let size = 1; size <= STREAM.length; size++) {
    const parser = sseParser();
    const told = [];
    for (let at = 0; at < STREAM.length; at += size) told.push(...parser.feed(STREAM.slice(at, at + size)));
    assert.deepEqual(told, [{ event: "transition", data: '{"a":1}', id: "8" }, { event: "message", data: "one\ntwo", id: "12" }]);
    assert.equal(parser.id, "12");
  }
});

test("an id counts when its message is complete, also one without data", () => {
  const parser = sseParser();
  parser.feed("id: 5\n");
  assert.equal(parser.id, null);
  parser.feed("\n");
  assert.equal(parser.id, "5");
});

test("what is no field of the standard is passed over", () => {
  assert.deepEqual(sseParser().feed("nonsense\nfoo: bar\ndata\n\n"), [{ event: "message", data: "", id: null }]);
});

test("each message has its own id, or the one before it", () => {
  const told = sseParser().feed("id: 7-4\nevent: text\ndata: a\n\nid: 7-9\nevent: text\ndata: b\n\nevent: end\ndata: c\n\n");
  assert.deepEqual(told.map(({ id }) => id), ["7-4", "7-9", "7-9"]);
});
