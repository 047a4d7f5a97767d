import assert from "node:assert/strict";
import { test } from "node:test";
import { bytes } from "./views/sizes.js";
import { FIRST, KEPT, plain, Tail } from "./views/tail.js";

/** An output that can grow, served by ranges as the server does. */
function served(text, { ranges = true } = {}) {
  const output = { data: new TextEncoder().encode(text), asked: [], refused: 0 };
  output.add = (more) => {
    output.data = new TextEncoder().encode(new TextDecoder().decode(output.data) + more);
  };
  output.ask = async (range, known) => {
    output.asked.push(range);
    const { data } = output;
    const etag = `"${new TextDecoder().decode(data).length}"`;
    if (known === etag) return new Response(null, { status: 304, headers: { ETag: etag } });
    if (!ranges) return new Response(data, { status: 200 });
    const [, first, last] = /^bytes=(\d*)-(\d*)$/.exec(range);
    const from = first === "" ? Math.max(0, data.length - Number(last)) : Number(first);
    const to = first === "" || last === "" ? data.length - 1 : Math.min(Number(last), data.length - 1);
    if (first === "" && !data.length) return new Response(data, { status: 200, headers: { ETag: etag } });
    if (from >= data.length) {
      output.refused += 1;
      return new Response(null, { status: 416, headers: { "Content-Range": `bytes */${data.length}` } });
    }
    return new Response(data.slice(from, to + 1), { status: 206, headers: { ETag: etag, "Content-Range": `bytes ${from}-${to}/${data.length}` } });
  };
  return output;
}

const held = (tail) => tail.blocks.map((block) => block.text).join("") + tail.unfinished;

test("an output is read from near its end, and then only what is new", async () => {
  const output = served(`${"x".repeat(FIRST)}\nlast line\n`);
  const tail = new Tail(output.ask);
  assert.equal(await tail.follow(), true);
  assert.ok(held(tail).endsWith("\nlast line\n") && held(tail).length === FIRST);
  assert.equal(await tail.follow(), false);
  output.add("more");
  assert.equal(await tail.follow(), true);
  assert.ok(held(tail).endsWith("last line\nmore"));
  assert.equal(output.asked.at(-1).startsWith(`bytes=${FIRST + 10}-`), true);
});

test("following what does not grow, or has not begun, is never refused", async () => {
  const output = served("");
  const tail = new Tail(output.ask);
  assert.deepEqual([await tail.follow(), await tail.follow()], [false, false]);
  output.add("a\n");
  assert.deepEqual([await tail.follow(), await tail.follow()], [true, false]);
  tail.known = null; // as if it had been touched, and is the same
  assert.equal(await tail.follow(), false);
  output.add("b");
  await tail.follow();
  assert.equal(held(tail), "a\nb");
  assert.equal(output.refused, 0);
});

test("earlier output is put before it, without a gap", async () => {
  const whole = Array.from({ length: 30_000 }, (_, at) => `line ${at}\n`).join("");
  const tail = new Tail(served(whole).ask);
  await tail.follow();
  while (tail.start > 0) assert.equal(await tail.earlier(), true);
  assert.equal(held(tail), whole);
});

test("characters that a range cuts in two are put together", async () => {
  const whole = "€".repeat(FIRST);
  const output = served("");
  const tail = new Tail(output.ask);
  await tail.follow();
  output.add("a€");
  output.data = output.data.slice(0, -1);
  await tail.follow();
  output.data = new TextEncoder().encode("a€b\n");
  await tail.follow();
  assert.equal(held(tail), "a€b\n");
  const large = new Tail(served(whole).ask);
  await large.follow();
  assert.match(held(large), /^€+$/);
});

test("an output that begins anew is read anew, and a server without ranges is understood", async () => {
  const output = served("first attempt\n");
  const tail = new Tail(output.ask);
  await tail.follow();
  output.data = new TextEncoder().encode("second\n");
  await tail.follow();
  assert.equal(held(tail), "second\n");
  const plainly = served("all of it\n", { ranges: false });
  const other = new Tail(plainly.ask);
  await other.follow();
  plainly.add("and more\n");
  await other.follow();
  assert.equal(held(other), "all of it\nand more\n");
});

test("what is held is bounded", async () => {
  const output = served("");
  const tail = new Tail(output.ask);
  for (let round = 0; round < 30; round += 1) {
    output.add(`${"y".repeat(99_999)}\n`);
    await tail.follow();
  }
  assert.ok(held(tail).length <= KEPT + 8 * FIRST);
  assert.ok(tail.start > 0);
});

test("orders to terminals are left out, and markup stays what it is: text", () => {
  assert.equal(plain("\u001b[1;32mok\u001b[0m \u001b]0;title\u0007<b>x</b>\u0007"), "ok <b>x</b>");
  assert.equal(plain("10%\r50%\r100%\r\ndone\r\n"), "100%\ndone\n");
  assert.equal(plain("a\tb\u0000c"), "a\tbc");
});

test("sizes are told in the unit that fits", () => {
  assert.deepEqual([0, 999, 1500, 64_000, 999_999, 3_500_000_000].map(bytes), ["0 B", "999 B", "1.5 kB", "64 kB", "1.0 MB", "3.5 GB"]);
});
