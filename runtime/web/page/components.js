// Components of several views. Each is a Preact component, used as html`<${State} state="running" />`.
//
//   State {state, phase?}           a state by colour, shape and word         Icon {name}
//   Name {text}                     an untrusted name, with its own direction of writing
//   Time {at}                       a moment; its title is the whole date     Ago {at}
//   Due {at}                        a due time, with the name of the reader's time zone
//   Since {from, to?}               a duration; it counts on while to is null
//   Countdown {to, over?}           the time until `to`, counting down; the caller writes "in" before it
//   Progress {counts, total}        a run's tasks by phase, as a bar and in words
//   Reported {of, name, brief?}     what a running body says of its progress: a bar if the whole is known, and words
//   Loaded {of, children}           the content of a resource; or that it is being read, or why it cannot be read
//   useWindow(count, height)        the rows of a long list that are drawn: see `views/runs.js`
//   Empty {title, children}         the text for an empty list, and what to do about it
//   Folded {title, children}        what is made when the reader opens it
//   Shown {title, value}            a value as JSON, in a region with that title
//   Page {title, children, aside?}  a view: its heading gets the focus when the view changes
//   tone(phase)                     "good" | "active" | "wait" | "warn" | "bad" | "idle": the class is tone-<that>
//
// Rules:
// - Colour alone never carries information; untrusted text is never used as markup.
// - Styles that depend on data are set as properties of the element: the page's policy allows no style attribute.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/ui.js";
import { arrival } from "./router.js";
import { now } from "./store.js";
import { ago, counted, due, ended as endedOf, full, groups, iso, listed, moment, number, safe, span, spoken, ticking, timed } from "./text.js";

// ----------------------------------------------------------------------------------------------------------- states

const PHASES = {
  // phase: [tone, icon]
  submitted: ["idle", "dots"], pending: ["idle", "dashed"], planned: ["idle", "dashed"], ready: ["idle", "dots"],
  queued: ["idle", "dots"], initializing: ["idle", "dots"], idle: ["idle", "circle"], closed: ["good", "check"],
  running: ["active", "play"], executing: ["active", "play"], busy: ["active", "play"], validating: ["active", "lens"],
  held: ["wait", "person"], waiting: ["wait", "clock"], paused: ["wait", "pause"], deciding: ["wait", "lens"],
  draining: ["wait", "down"], cancelling: ["warn", "stop"], half_open: ["wait", "half"],
  retrying: ["warn", "retry"], recovering: ["warn", "question"], timed_out: ["warn", "clock"],
  circuit_open: ["warn", "bolt"], open: ["bad", "bolt"], unresponsive: ["bad", "question"],
  completed: ["good", "check"], failed: ["bad", "cross"],
  cancelled: ["idle", "stop"], skipped: ["idle", "skip"], shutdown: ["idle", "down"], terminated: ["idle", "stop"],
};

/** The tone of a phase: its colours are the class `tone-<tone>`. */
export const tone = (phase) => PHASES[phase]?.[0] ?? "idle";

/** The icon of a phase. */
export const iconOf = (phase) => PHASES[phase]?.[1] ?? "dashed";

/** The paths of the icons, in a square of 16 x 16, drawn as lines; icons in `FILLED` are filled. */
export const ICONS = {
  check: "M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5M5.25 8.25l2 2 3.5-4",
  cross: "M5.4 1.75h5.2l3.65 3.65v5.2l-3.65 3.65H5.4L1.75 10.6V5.4zM5.75 5.75l4.5 4.5m0-4.5-4.5 4.5",
  play: "M4 2.75 13 8l-9 5.25z",
  pause: "M5 3v10M11 3v10",
  stop: "M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5M3.7 12.3l8.6-8.6",
  skip: "m3 3.5 4.5 4.5L3 12.5m5.5-9L13 8l-4.5 4.5",
  dots: "M2.75 8h.5M7.75 8h.5M12.75 8h.5",
  dashed: "M5.6 2.2a6.25 6.25 0 0 1 4.8 0M13.8 5.6a6.25 6.25 0 0 1 0 4.8M10.4 13.8a6.25 6.25 0 0 1-4.8 0M2.2 10.4a6.25 6.25 0 0 1 0-4.8",
  circle: "M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5",
  clock: "M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5M8 4.5V8l2.5 1.75",
  person: "M8 1.75a2.75 2.75 0 1 0 0 5.5 2.75 2.75 0 0 0 0-5.5M2.5 14.25c0-3 2.25-4.75 5.5-4.75s5.5 1.75 5.5 4.75",
  lens: "M7 2a5 5 0 1 0 0 10A5 5 0 0 0 7 2m3.75 8.75L14 14",
  retry: "M13.25 6.5A5.5 5.5 0 1 0 13.5 9M13.75 2.5v4h-4",
  bolt: "M9 1.5 3.5 9h4L7 14.5 12.5 7h-4z",
  half: "M8 1.75a6.25 6.25 0 1 0 0 12.5zM8 1.75a6.25 6.25 0 0 1 0 12.5",
  question: "M8 1.75a6.25 6.25 0 1 0 0 12.5 6.25 6.25 0 0 0 0-12.5M6.25 6.25C6.25 5 7 4.5 8 4.5s1.75.6 1.75 1.6C9.75 7.5 8 7.5 8 9m0 2.25v.25",
  down: "M8 2v8.5M4.25 7 8 10.75 11.75 7M3 13.75h10",
  search: "M7 2a5 5 0 1 0 0 10A5 5 0 0 0 7 2m3.75 8.75L14 14",
  close: "m3.5 3.5 9 9m0-9-9 9",
  child: "M3.5 2v6.5a2 2 0 0 0 2 2h7M10 8l2.5 2.5L10 13",
  gear: "M8 5.5a2.5 2.5 0 1 0 0 5 2.5 2.5 0 0 0 0-5M8 1.75v2M8 12.25v2M1.75 8h2M12.25 8h2M3.6 3.6 5 5M11 11l1.4 1.4M3.6 12.4 5 11M11 5l1.4-1.4",
  runs: "M2 4h3m2 0h7M2 8h6m2 0h4M2 12h2m2 0h8",
  worker: "M2.5 3h11v4h-11zm0 6h11v4h-11zM5 5h.25M5 11h.25",
};
const FILLED = new Set(["play", "bolt"]);

export function Icon({ name }) {
  return html`<svg class=${`icon${FILLED.has(name) ? " filled" : ""}`} viewBox="0 0 16 16" aria-hidden="true" focusable="false">
    <path d=${ICONS[name] ?? ICONS.dashed} />
  </svg>`;
}

export function State({ state, phase = state }) {
  const known = phase in PHASES ? phase : state in PHASES ? state : phase;
  return html`<span class=${`state tone-${tone(known)}`}><${Icon} name=${iconOf(known)} /><span>${spoken(state)}</span></span>`;
}

// ------------------------------------------------------------------------------------------------- words and times

export const Name = ({ text }) => html`<bdi class="name">${safe(text)}</bdi>`;

export const Time = ({ at }) => at === null || at === undefined ? null
  : html`<time datetime=${iso(at)} title=${full(at)}>${moment(at, now.value)}</time>`;

export const Due = ({ at }) => at === null || at === undefined ? null
  : html`<time datetime=${iso(at)} title=${full(at)}>${due(at, now.value)}</time>`;

export const Ago = ({ at }) => at === null || at === undefined ? null
  : html`<time datetime=${iso(at)} title=${full(at)}>${ago(at, now.value)}</time>`;

export function Since({ from, to = null }) {
  if (from === null || from === undefined) return null;
  return html`<span class="num">${to === null ? ticking(Math.floor(now.value - from)) : span(to - from)}</span>`;
}

export function Countdown({ to, over = "a moment" }) {
  if (to === null || to === undefined) return null;
  const left = to - now.value;
  return html`<time class="num" datetime=${iso(to)} title=${full(to)}>${left > 0 ? ticking(left) : over}</time>`;
}

// --------------------------------------------------------------------------------------------------------- progress

export function Progress({ counts = {}, total = 0, brief = false }) {
  const shown = groups(counts);
  const ended = endedOf(counts);
  const words = shown.filter(({ word }) => word !== "done").map(({ word, count }) => `${number(count)} ${word}`);
  const told = total ? `${number(ended)} of ${counted(total, "task")} ended` : "no tasks yet";
  return html`<span class="progress">
    <span class="bar" role="progressbar" aria-label="Progress" aria-valuemin="0" aria-valuemax=${total || 1} aria-valuenow=${ended}
      aria-valuetext=${listed([told, ...words])}>
      ${shown.map((group) => html`<span key=${group.word} class=${`part tone-${group.tone}`} style=${{ flexGrow: group.count }}></span>`)}
      <span class="part rest" style=${{ flexGrow: Math.max(0, total - shown.reduce((sum, { count }) => sum + count, 0)) }}></span>
    </span>
    <span class="told num" aria-hidden="true">
      <b>${number(ended)}</b>/${number(total)}${brief ? "" : words.length ? ` · ${words.join(" · ")}` : ""}
    </span>
  </span>`;
}

export function Reported({ of: { done, of, text }, name, brief = false }) {
  const share = of ? Math.min(Math.max(done / of, 0), 1) : null;
  const amount = share === null ? number(done) : `${number(done)} of ${number(of)} (${Math.floor(share * 100)} %)`;
  const said = text && !brief ? `${amount}, ${safe(text)}` : amount;
  return html`<span class="progress reported">
    ${share !== null && html`<span class="bar" role="progressbar" aria-label=${`Progress of ${safe(name)}`} aria-valuemin="0" aria-valuemax=${of} aria-valuenow=${share * of} aria-valuetext=${said}>
      <span class="part tone-active" style=${{ flexGrow: share }}></span><span class="part rest" style=${{ flexGrow: 1 - share }}></span></span>`}
    <span class="told num" aria-hidden=${share === null ? null : "true"} title=${text ? safe(text) : null}>${said}</span>
  </span>`;
}

// ------------------------------------------------------------------------------------------------------------ pages

/** A view. Its heading gets the focus when the view changes, so that a screen reader says the new view's title. */
export function Page({ title, heading = title, children, aside = null, back = null }) {
  const top = useRef(null);
  useEffect(() => {
    document.title = `${safe(title)} · Callboard`;
  }, [title]);
  useLayoutEffect(() => {
    if (moved) {
      top.current.focus({ preventScroll: true });
      scrollTo(0, arrival());
    }
    moved = true;
  }, []);
  return html`<div class="page">
    <header class="head">
      <div class="titles">${back}<h1 ref=${top} tabindex="-1">${heading}</h1></div>
      ${aside && html`<div class="aside">${aside}</div>`}
    </header>
    ${children}
  </div>`;
}
let moved = false; // whether a view was shown before: the first view does not move the focus

/** Shows `children(data)` for a resource's data. A problem is shown above it, and the old data stay. */
export function Loaded({ of, children, what = "this" }) {
  const data = of.data.value;
  const problem = of.problem.value;
  const away = problem !== null && (problem.status === 0 || problem.status === 401); // the shell shows that
  return html`
    ${problem !== null && !away && html`<${Trouble} problem=${problem} again=${of.reload} />`}
    ${data !== undefined ? children(data)
      : away ? html`<p class="loading">It will be shown when the server can be reached.</p>`
      : problem === null && html`<p class="loading" role="status">Reading ${what} …</p>`}
  `;
}

/** A problem in words, with a way to try again. */
export function Trouble({ problem, again = null }) {
  return html`<div class="trouble" role="alert">
    <${Icon} name="cross" />
    <div>
      <strong>${safe(problem.title)}.</strong>
      ${" "}${problem.said.detail && problem.said.detail !== problem.title ? html`<span class="prose">${timed(safe(problem.said.detail), now.value)}</span>` : null}
      ${problem.said.findings?.length ? html`<ul class="findings">
        ${problem.said.findings.map((one, index) => html`<li key=${index}><code>${safe(one.where)}</code> ${safe(one.text)}</li>`)}</ul>` : null}
    </div>
    ${again && html`<button type="button" class="quiet" onClick=${again}>Try again</button>`}
  </div>`;
}

export const Empty = ({ title, children = null }) => html`<div class="empty"><p class="what">${title}</p>${children}</div>`;

// ---------------------------------------------------------------------------------------------------------- windows

/**
 * The rows of a long list that are drawn: those near the visible part. All rows are `height` px high.
 * Returns {ref, first, last, above, below}. ref is for the element that holds the rows; above and below are the heights in px
 * of the rows that are not drawn. It follows the scrolling of the element if the element scrolls, otherwise of the page.
 */
export function useWindow(count, height, { spare = 12, start = 40 } = {}) {
  const ref = useRef(null);
  const [[first, last], set] = useState([0, start]);
  useLayoutEffect(() => {
    const box = ref.current;
    if (!box) return undefined;
    const own = getComputedStyle(box).overflowY === "auto" || getComputedStyle(box).overflowY === "scroll";
    const outer = own ? box : window;
    let asked = 0;
    const look = () => {
      asked = 0;
      const top = own ? box.scrollTop : -box.getBoundingClientRect().top;
      const seen = own ? box.clientHeight : innerHeight;
      const from = Math.max(0, Math.floor(top / height) - spare);
      const to = Math.min(count, Math.ceil((top + seen) / height) + spare);
      set((was) => was[0] === from && was[1] === to ? was : [from, Math.max(from, to)]);
    };
    const soon = () => {
      asked ||= requestAnimationFrame(look);
    };
    const watcher = new ResizeObserver(soon);
    watcher.observe(box);
    outer.addEventListener("scroll", soon, { passive: true });
    addEventListener("resize", soon);
    look();
    return () => {
      cancelAnimationFrame(asked);
      watcher.disconnect();
      outer.removeEventListener("scroll", soon);
      removeEventListener("resize", soon);
    };
  }, [count, height]);
  const end = Math.min(last, count);
  const begin = Math.min(first, end);
  return { ref, first: begin, last: end, above: begin * height, below: (count - end) * height };
}

/** Content that is made when the reader opens it. */
export function Folded({ title, children }) {
  const [open, setOpen] = useState(false);
  return html`<details open=${open} onToggle=${(event) => setOpen(event.target.open)}><summary>${title}</summary>${open && children}</details>`;
}

/** A value as JSON; of a very long one, its beginning. */
export function Shown({ title, value }) {
  const text = useMemo(() => JSON.stringify(value, null, 2), [value]);
  return html`<pre class="value" tabindex="0" role="region" aria-label=${title}>${safe(text.length > 100_000 ? `${text.slice(0, 100_000)}\n…` : text, { lines: true })}</pre>`;
}

/** An empty element as high as the rows that are not drawn. */
export const Gap = ({ px }) => px > 0 ? html`<div class="gap" role="presentation" style=${{ height: `${px}px` }}></div>` : null;

