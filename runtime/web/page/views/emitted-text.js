// The end of a text that a body emits, kept as plain text in blocks. Pure.
//
// Rules:
// - At most about KEPT characters are kept: the oldest blocks are dropped first.
// - The text is escaped as an output is (`tail.js`), and never used as markup. Control sequences may come in pieces: so
//   the last line is escaped anew as it grows, unless it is very long.

import { plain } from "./tail.js";
import { number } from "../text.js";

export const KEPT = 1024 * 1024;
const LINE = 8192; // characters of an unfinished line that are escaped anew

export class EmittedText {
  constructor() {
    this.clear();
  }

  clear() {
    this.blocks = []; // [{at, text}], the oldest first; `text` is already plain
    this.dropped = false; // whether the oldest blocks were dropped here
    this.size = 0; // characters that have come
    this.rest = ""; // the last line without its end, unchanged
  }

  get empty() {
    return !this.blocks.length && this.rest === "";
  }

  add(text) {
    this.size += text.length;
    const all = this.rest + text;
    let cut = all.lastIndexOf("\n") + 1;
    if (all.length - cut > LINE) cut = all.length;
    if (cut) this.#keep(plain(all.slice(0, cut)));
    this.rest = all.slice(cut);
  }

  /** Characters that are missing here. */
  gap(count) {
    this.#keep(`${plain(this.rest)}\n[${number(count)} characters are missing here]\n`);
    this.rest = "";
  }

  #keep(text) {
    const last = this.blocks.at(-1);
    if (last && last.text.length + text.length <= LINE) this.blocks[this.blocks.length - 1] = { at: last.at, text: last.text + text };
    else this.blocks.push({ at: this.size, text });
    let held = this.blocks.reduce((sum, block) => sum + block.text.length, 0);
    while (held > KEPT && this.blocks.length > 1) {
      held -= this.blocks.shift().text.length;
      this.dropped = true;
    }
  }

  /** The last line, which has not ended. */
  get unfinished() {
    return plain(this.rest);
  }
}
