// The output of an attempt: its last part, updated while the attempt runs.
//
// Rules:
// - The view follows the output while its end is visible; scrolling up pauses it, and then nothing jumps.
// - The output is text in a scrolling box that the keyboard reaches; a screen reader reads it only when the user asks.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { Trouble } from "../components.js";
import { ask, Problem, problemOf } from "../net.js";
import { bytes } from "./sizes.js";
import { readRange, Tail } from "./tail.js";

const EVERY = 1000; // ms between two reads of an output that is being written

/** path: the output's path. running: whether it still grows. written: its bytes, if known. onNone: called if there is none. */
export function Output({ path, running, written = null, onNone }) {
  const [problem, setProblem] = useState(null);
  const [, drawn] = useState(0);
  const [following, setFollowing] = useState(true);
  const box = useRef(null);
  const stuck = useRef(true);
  const size = useRef(null);
  const tail = useMemo(() => new Tail(async (range, known) => {
    const response = await ask("GET", path, { headers: { Range: range, Accept: "text/plain", ...(known ? { "If-None-Match": known } : {}) } });
    if (response.status === 304) return response;
    if (!response.ok && response.status !== 416) throw await problemOf(response);
    size.current = Number(response.headers.get("X-Output-Size") ?? NaN);
    return response;
  }), [path]);

  useEffect(() => {
    let over = false;
    let timer = null;
    const look = async () => {
      try {
        let more = true;
        while (more && !over) {
          const was = tail.end;
          more = (await tail.follow()) && tail.end < tail.total && tail.end > was;
        }
        setProblem(null);
      } catch (error) {
        if (error instanceof Problem && error.status === 404) return over || onNone();
        setProblem(error instanceof Problem ? error : new Problem(0, { detail: String(error) }));
      }
      if (over) return;
      drawn((count) => count + 1);
      if (running && following) timer = setTimeout(look, document.hidden ? 5 * EVERY : EVERY);
    };
    void look();
    return () => {
      over = true;
      clearTimeout(timer);
    };
  }, [tail, running, following]);

  useLayoutEffect(() => {
    if (stuck.current && following && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    stuck.current = scrollHeight - scrollTop - clientHeight < 24;
    if (running && !stuck.current && following) setFollowing(false);
  };
  const toEnd = () => {
    stuck.current = true;
    setFollowing(true);
    box.current.scrollTop = box.current.scrollHeight;
  };
  const earlier = async () => {
    const before = box.current.scrollHeight - box.current.scrollTop;
    stuck.current = false;
    await tail.earlier().catch(setProblem);
    drawn((count) => count + 1);
    requestAnimationFrame(() => {
      box.current.scrollTop = box.current.scrollHeight - before;
    });
  };

  const empty = !tail.blocks.length && !tail.unfinished;
  const true_ = Number.isFinite(size.current) ? size.current : written;
  const gone = true_ !== null && true_ > tail.total && !running;
  return html`<div class="output">
    <div class="outputbar">
      <span class="soft num">${tail.total ? `${bytes(tail.total)}${tail.start ? `, shown from ${bytes(tail.start)} on` : ""}` : ""}${gone ? ` kept of ${bytes(true_)}` : ""}</span>
      <span class="spring"></span>
      ${running && html`<button type="button" class="quiet" aria-pressed=${following} onClick=${() => following ? setFollowing(false) : toEnd()}>${following ? "Pause" : "Follow"}</button>`}
      ${!empty && html`<button type="button" class="quiet" onClick=${toEnd}>Jump to end</button>`}
      <${Save} path=${path} />
    </div>
    ${problem && html`<${Trouble} problem=${problem} />`}
    <pre ref=${box} tabindex="0" role="region" aria-label="Output" onScroll=${scrolled}>${tail.start > 0 && html`<button type="button" class="quiet earlier" onClick=${earlier}>Show earlier output</button>`}${
      tail.blocks.map((block) => html`<span key=${block.from}>${block.text}</span>`)}<span>${tail.unfinished}</span>${empty && html`<span class="soft">${running ? "No output yet." : "There is no output."}</span>`}</pre>
  </div>`;
}

/** Downloads the whole output as a file, read in parts. By fetch, since a link sends no token. */
function Save({ path }) {
  const save = async () => {
    const parts = [];
    for (let from = 0, total = Infinity; from < total;) {
      const response = await ask("GET", path, { headers: { Accept: "text/plain", ...(from ? { Range: `bytes=${from}-` } : {}) } });
      const part = response.ok || response.status === 416 ? await readRange(response) : { bytes: null };
      if (!part.bytes?.length) break;
      parts.push(part.bytes);
      from += part.bytes.length;
      total = part.total;
    }
    const link = Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob(parts, { type: "text/plain" })), download: "output.txt" });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
  };
  return html`<button type="button" class="quiet" onClick=${save}>Save</button>`;
}
