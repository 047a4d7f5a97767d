// The text that a running body emits, such as the tokens of a model, as it comes.
//
// Rules:
// - It has a stream of its own beside that of the page, only while the task runs and the reader follows. It is closed while
//   the page is hidden for long.
// - Nothing of the text is stored: it is what the server keeps of the running attempt, and what came since.
// - A stream ends with its attempt. While the task runs, the next one is waited for, and replaces the text.
// - Nothing is shown of a body that emits nothing.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { ask } from "../net.js";
import { sseParser } from "../sse.js";
import { link } from "../store.js";
import { number } from "../text.js";
import { EmittedText } from "./emitted-text.js";

const DRAWN = 100; // ms between two drawings
const WAITS = [500, 1000, 2000, 4000, 8000, 15_000];

/** path: the task's. live: whether its body runs. */
export function Emitted({ path, live }) {
  const kept = useMemo(() => new EmittedText(), [path]);
  const [, drawn] = useState(0);
  const [following, setFollowing] = useState(true);
  const last = useRef(null); // the id of the last part: the token of its attempt, and the place after the part
  const box = useRef(null);
  const stuck = useRef(true);
  const asleep = link.value.state === "asleep";
  const running = useRef(live);
  running.current = live;
  const [active, setActive] = useState(live); // also from the end of a body until its stream has ended
  useEffect(() => {
    if (live) setActive(true);
  }, [live]);

  useEffect(() => {
    if (!active || !following || asleep) return undefined;
    const stopping = new AbortController();
    let timer = null;
    const draw = () => {
      timer ??= setTimeout(() => {
        timer = null;
        drawn((count) => count + 1);
      }, DRAWN);
    };
    void follow({ path, kept, last, draw, runs: () => running.current, signal: stopping.signal }).then(() => stopping.signal.aborted || setActive(false));
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
  }, [path, active, following, asleep]);

  useLayoutEffect(() => {
    if (stuck.current && following && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  const scrolled = () => {
    const { scrollTop, scrollHeight, clientHeight } = box.current;
    stuck.current = scrollHeight - scrollTop - clientHeight < 24;
  };
  const toEnd = () => {
    stuck.current = true;
    box.current.scrollTop = box.current.scrollHeight;
  };
  const turn = () => {
    if (!following) stuck.current = true;
    setFollowing(!following);
  };

  if (kept.empty) return null;
  return html`<section aria-label="Live text"><h3>Live text</h3><div class="output">
    <div class="outputbar">
      <span class="soft num">${number(kept.size)} characters${kept.dropped ? ", shown from later on" : ""}${live ? "" : ", the attempt is over"}</span>
      <span class="spring"></span>
      ${live && html`<button type="button" class="quiet" aria-pressed=${following} onClick=${turn}>${following ? "Stop" : "Follow"}</button>`}
      <button type="button" class="quiet" onClick=${toEnd}>Jump to end</button>
    </div>
    <pre ref=${box} tabindex="0" role="region" aria-label="Text" onScroll=${scrolled}>${kept.blocks.map((block) => html`<span key=${block.at}>${block.text}</span>`)}<span>${kept.unfinished}</span></pre>
  </div></section>`;
}

/** Read streams of a task's text until stopped, or until its body has ended and its stream, too. */
async function follow({ path, kept, last, draw, runs, signal }) {
  for (let tries = 0; ; tries += 1) {
    try {
      const headers = { Accept: "text/event-stream", ...(last.current === null ? {} : { "Last-Event-ID": last.current }) };
      const response = await ask("GET", `${path}/stream`, { headers, signal });
      if (response.ok) {
        if (await read(response.body.getReader(), kept, last, draw)) tries = 0;
      } else if (response.status < 500 && response.status !== 429) {
        return; // such as a task that is not there any more
      }
    } catch {
      // the connection was lost, or closed
    }
    if (signal.aborted || !runs()) return;
    await new Promise((go) => setTimeout(go, WAITS[Math.min(tries, WAITS.length - 1)]));
    if (signal.aborted || !runs()) return;
  }
}

/** Read one stream to its end. Returns whether anything came. */
async function read(reader, kept, last, draw) {
  const parser = sseParser();
  const decoder = new TextDecoder();
  let any = false;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return any;
    for (const { event, data, id } of parser.feed(decoder.decode(value, { stream: true }))) {
      if (event !== "text" && event !== "gap") continue;
      any = true;
      const [token] = id.split("-");
      if (last.current !== null && last.current.split("-")[0] !== token) kept.clear();
      last.current = id;
      const told = JSON.parse(data);
      if (event === "gap") kept.gap(told.count);
      else kept.add(told.text);
      draw();
    }
  }
}
