// The last part of an output, which may still grow and may be huge: read by ranges, kept as text in blocks. Pure.
//
// Rules:
// - `ask(range, known)` returns a response of `GET .../output` with that Range header, and with `known`, the ETag of the
//   last response, as If-None-Match. One piece of the output without gaps is kept, from byte `start` to byte `end`; at
//   most about KEPT bytes: the oldest blocks are dropped first.
// - The next range begins with the last byte that is kept: so the range is never empty, unless
//   the output was started again, and no request is an error.
// - Bytes that are not UTF-8 are shown as replacement characters; a character that a range cuts in two is joined again.
// - Control sequences of terminals (colours, titles, the carriage return of progress bars) are applied as far as plain
//   text allows, or removed; invisible characters, and those that change the direction of writing, are escaped; an
//   output is never used as markup.

import { safe } from "../text.js";

export const FIRST = 64 * 1024; // bytes of the first read, and of each older piece
export const KEPT = 1024 * 1024;

// eslint-disable-next-line no-control-regex
const ORDERS = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[PX^_][^\u001b]*(?:\u001b\\)?|[ -/]*[0-~])|[\u0000-\u0008\u000b\u000c\u000e-\u001a\u001c-\u001f\u007f]/g;

/** The text as a terminal without colours would show it. */
export function plain(text) {
  const bare = text.replace(ORDERS, "").replace(/\u001b/g, "");
  if (!bare.includes("\r")) return safe(bare, { lines: true });
  const lines = bare.split("\n").map((line) => {
    const ended = line.endsWith("\r") ? line.slice(0, -1) : line;
    return ended.slice(ended.lastIndexOf("\r") + 1);
  });
  return safe(lines.join("\n"), { lines: true });
}

/** The bytes of a range response: {from, bytes, total}; bytes is null if the range was empty. */
export async function readRange(response) {
  const said = /bytes (?:(\d+)-\d+|\*)\/(\d+|\*)/.exec(response.headers.get("Content-Range") ?? "");
  const total = said && said[2] !== "*" ? Number(said[2]) : null;
  if (response.status === 416) return { from: null, bytes: null, total };
  const bytes = new Uint8Array(await response.arrayBuffer());
  return { from: said?.[1] === undefined ? 0 : Number(said[1]), bytes, total: total ?? bytes.length };
}

const continues = (byte) => (byte & 0xc0) === 0x80;

export class Tail {
  constructor(ask) {
    this.ask = ask;
    this.clear();
  }

  clear() {
    this.blocks = []; // [{from, text}], the oldest first; `text` is already plain
    this.start = null; // the first byte that is kept; null while nothing was read
    this.end = 0;
    this.total = 0;
    this.known = null; // the ETag of the last response
    this.rest = ""; // the last line without its end, unchanged
    this.decoder = new TextDecoder();
  }

  /** Read new output. Returns whether anything changed. */
  async follow() {
    const first = this.end === 0;
    const response = await this.ask(first ? `bytes=-${FIRST}` : `bytes=${this.end - 1}-${this.end + 8 * FIRST - 2}`, this.#all ? this.known : null);
    if (response.status === 304) return false;
    const { from, bytes, total } = await readRange(response);
    this.known = response.headers.get("ETag");
    if (!first && total !== null && total < this.end) {
      this.clear(); // the output was started again
      return this.follow();
    }
    if (bytes === null || !bytes.length) {
      this.start ??= 0;
      return false;
    }
    if (first || from !== this.end - 1) {
      if (!first) this.clear(); // the server does not support ranges
      return this.#take(bytes, from, total);
    }
    return bytes.length > 1 && this.#take(bytes.subarray(1), this.end, total);
  }

  /** Whether all bytes that existed are read. */
  get #all() {
    return this.start !== null && this.end >= this.total;
  }

  #take(bytes, from, total) {
    let skipped = 0;
    if (this.end === 0) {
      if (from > 0) while (skipped < Math.min(4, bytes.length) && continues(bytes[skipped])) skipped += 1;
      this.start = from + skipped;
    }
    this.end = from + bytes.length;
    this.total = total;
    const text = this.rest + this.decoder.decode(bytes.subarray(skipped), { stream: true });
    const cut = text.lastIndexOf("\n") + 1;
    this.rest = text.slice(cut);
    if (cut) this.blocks.push({ from: this.end - bytes.length, text: plain(text.slice(0, cut)) });
    this.#trim();
    return true;
  }

  #trim() {
    let held = this.blocks.reduce((sum, block) => sum + block.text.length, 0);
    while (held > KEPT && this.blocks.length > 1) {
      held -= this.blocks.shift().text.length;
      this.start = this.blocks[0].from;
    }
  }

  /** Read the piece before the first byte that is kept. */
  async earlier() {
    if (!this.start) return false;
    const wanted = Math.max(0, this.start - FIRST);
    const { from, bytes } = await readRange(await this.ask(`bytes=${wanted}-${this.start - 1}`));
    if (bytes === null || from !== wanted) return false;
    let skipped = 0;
    if (from > 0) while (skipped < Math.min(4, bytes.length) && continues(bytes[skipped])) skipped += 1;
    this.blocks.unshift({ from, text: plain(new TextDecoder().decode(bytes.subarray(skipped))) });
    this.start = from + skipped;
    return true;
  }

  /** The last line, which has not ended. */
  get unfinished() {
    return plain(this.rest);
  }
}
