// The timeline of a run: the phases of each task, as bars on one axis of time.
//
// Rules:
// - Only rows near the visible part are drawn; their bars are read PAGE tasks at a time, and updated
//   by the transitions then.
// - Attempts differ from waits by height and pattern, not by colour alone; each row describes its bars in words.
// - The axis follows the present time until a person zooms or moves it.

import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { scaleTime } from "../vendor/axis.js";
import { Empty, Gap, Icon, iconOf, Name, Trouble, tone, useWindow } from "../components.js";
import { json, Problem } from "../net.js";
import { ask, href } from "../router.js";
import { Still, useStill } from "../still.js";
import { now, segments, useEvents } from "../store.js";
import { clock, full, safe, span, spoken } from "../text.js";
import { enter, spanOf, STAYS, told, visibleBars, zoomed } from "./bars.js";
import { phaseOf, taskOf } from "./live-graph.js";
import { Picking, usePicked } from "./picking.js";

const ROW = 33; // px, as run.css has it with its line
const PAGE = 200; // tasks that are read at once
const LATE = 2; // a page may lack transitions of so many seconds before its read; older ones are in it
const AXIS = 28;

/** The format of ticks: as exact as their distance needs, and midnight as its day. */
function tickForm(ticks) {
  const step = ticks.length > 1 ? ticks[1] - ticks[0] : 1000;
  const clockOf = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", ...(step < 60_000 ? { second: "2-digit" } : {}), ...(step < 1000 ? { fractionalSecondDigits: step < 10 ? 3 : step < 100 ? 2 : 1 } : {}) });
  const dayOf = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
  return (tick) => (tick.getHours() + tick.getMinutes() + tick.getSeconds() + tick.getMilliseconds() === 0 ? dayOf : clockOf).format(tick);
}

/** The bars of the requested tasks: rows (by number), need(numbers), version, problem. */
function useBars(id, model, workstream) {
  const [version, setVersion] = useState(0);
  const state = useMemo(() => ({ rows: new Map(), pages: new Map(), problem: null }), [model]);
  const redraw = () => setVersion((count) => count + 1);
  const later = useRef(null);
  useEffect(() => () => clearTimeout(later.current), []);
  const load = async (page) => {
    state.pages.set(page, "reading");
    try {
      const read = await json("GET", `api/jobs/${segments(id)}/timeline?offset=${page * PAGE}&limit=${PAGE}`);
      for (const { task, bars } of read.rows) state.rows.set(task, bars);
      state.pages.set(page, { now: read.now });
      state.problem = null;
    } catch (error) {
      state.pages.delete(page);
      state.problem = error instanceof Problem ? error : new Problem(0, { detail: String(error) });
    }
    redraw();
  };
  useEvents({
    events(batch) {
      let any = false;
      for (const event of batch) {
        if (event.workstream_id !== workstream) continue;
        const task = taskOf(model, event);
        const page = Math.floor(task / PAGE);
        if (task === undefined || !(event.at > state.pages.get(page)?.now - LATE)) continue;
        if (!state.rows.has(task)) state.rows.set(task, []);
        any = enter(state.rows.get(task), phaseOf(event), event.at, event.attempt) || any;
      }
      if (any) later.current ??= setTimeout(() => { later.current = null; redraw(); }, 150);
    },
    reset() {
      state.pages.clear();
      redraw();
    },
  });
  const need = (tasks) => {
    if (state.problem) return;
    for (const page of new Set(tasks.map((task) => Math.floor(task / PAGE)))) if (!state.pages.has(page)) void load(page);
  };
  const again = () => {
    state.problem = null;
    redraw();
  };
  return { rows: state.rows, pages: state.pages, need, version, problem: state.problem, again };
}

export function Timeline({ id, model, query, job, chosen }) {
  const still = useStill(usePicked(model, query), { key: Number, about: [model.names.length, query.phase, query.name] });
  const { rows: picked, past } = still;
  const shown = useWindow(picked.length, ROW);
  const bars = useBars(id, model, job.workstream);
  const seen = picked.slice(shown.first, shown.last);
  useEffect(() => bars.need(seen), [shown.first, shown.last, picked, bars.version]);

  const track = useRef(null);
  const [width, setWidth] = useState(600);
  useLayoutEffect(() => {
    const watcher = new ResizeObserver(() => setWidth(track.current.clientWidth));
    watcher.observe(track.current);
    return () => watcher.disconnect();
  }, []);

  const ended = job.finished_at !== null && job.finished_at !== undefined;
  const present = ended ? job.finished_at : now.value;
  const [domain, setDomain] = useState(null); // null: the whole run, up to now
  const all = useMemo(() => spanOf(bars.rows.values(), job.started_at ?? job.created_at, present), [bars.version, present]);
  const [from, to] = domain ?? all;
  const scale = useMemo(() => {
    const made = scaleTime().domain([from * 1000, to * 1000]).range([0, width]);
    return Object.assign((at) => made(at * 1000), { ticks: made.ticks(Math.max(2, Math.floor(width / 110))), form: tickForm(made.ticks(Math.max(2, Math.floor(width / 110)))) });
  }, [from, to, width]);
  const zoom = (factor, about) => setDomain(zoomed([from, to], factor, about));
  const move = (part) => setDomain([from + (to - from) * part, to + (to - from) * part]);
  useDragged(track, { zoom, move, domain: [from, to] });

  const keys = (event) => {
    const done = { "+": () => zoom(0.6), "=": () => zoom(0.6), "-": () => zoom(1 / 0.6), "0": () => setDomain(null), ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2) }[event.key];
    if (!done || event.ctrlKey || event.metaKey || event.altKey) return;
    done();
    event.preventDefault();
  };
  return html`<section class="timeline" aria-label="Timeline">
    <${Picking} model=${model} query=${query}>
      <div class="zooms" role="group" aria-label="Zoom of the time axis">
        <button type="button" aria-label="Longer" onClick=${() => zoom(1 / 0.6)}>−</button>
        <button type="button" aria-label="Shorter" onClick=${() => zoom(0.6)}>+</button>
        <button type="button" aria-pressed=${domain === null} onClick=${() => setDomain(null)}>${ended ? "All" : "All, live"}</button>
      </div>
    <//>
    ${bars.problem && html`<${Trouble} problem=${bars.problem} again=${bars.again} />`}
    ${picked.length === 0 && html`<${Empty} title="No task is like that"><p><button type="button" class="quiet" onClick=${() => ask({ phase: "", name: "" })}>Show all</button></p><//>`}
    <${Still} of=${still}><div class=${`rows lanes${picked.length ? "" : " none"}`} role="table" aria-label="Timeline" aria-rowcount=${picked.length + 1}>
      <div role="rowgroup" class="axisrow"><div class="row heads" role="row" aria-rowindex="1">
        <span role="columnheader">Task</span>
        <span role="columnheader" class="track" ref=${track} tabindex="0" onKeyDown=${keys}>
          <span class="unseen">Time, from ${full(from)} to ${full(to)}. Arrow keys move, plus and minus zoom.</span>
          <${Axis} scale=${scale} width=${width} present=${ended ? null : present} />
        </span>
      </div></div>
      <div role="rowgroup" ref=${shown.ref}>
        <${Grid} scale=${scale} width=${width} present=${ended ? null : present} />
        <${Gap} px=${shown.above} />
        ${seen.map((task, place) => html`<${Row} key=${task} ...${{ id, model, task, scale, width, present, chosen }} past=${past.has(task)} bars=${bars.rows.get(task) ?? (bars.pages.get(Math.floor(task / PAGE)) ?.now ? [] : null)}
          at=${shown.first + place + 2} />`)}
        <${Gap} px=${shown.below} />
      </div>
    </div><//>
    <${Key} rows=${bars.rows} version=${bars.version} />
  </section>`;
}

function Axis({ scale, width, present }) {
  const line = present === null ? null : scale(present);
  return html`<svg class="axis" width=${width} height=${AXIS} aria-hidden="true">
    ${scale.ticks.map((tick) => {
      const x = scale(tick / 1000);
      return html`<g key=${tick.getTime()} transform=${`translate(${Math.round(x)},0)`}><line y1=${AXIS - 5} y2=${AXIS} /><text y="17" text-anchor=${x < 24 ? "start" : x > width - 24 ? "end" : "middle"}>${scale.form(tick)}</text></g>`;
    })}
    ${line !== null && line >= 0 && line <= width && html`<path class="nowmark" d=${`M${line - 4} ${AXIS - 7}h8l-4 7z`} />`}
  </svg>`;
}

/** The lines of the axis behind all rows. */
function Grid({ scale, width, present }) {
  const line = present === null ? null : scale(present);
  return html`<div class="gridlines" role="presentation"><svg width=${width} height="100%" aria-hidden="true">
    ${scale.ticks.map((tick) => html`<line key=${tick.getTime()} class="grid" x1=${Math.round(scale(tick / 1000))} x2=${Math.round(scale(tick / 1000))} y1="0" y2="100%" />`)}
    ${line !== null && line >= 0 && line <= width && html`<line class="now" x1=${line} x2=${line} y1="0" y2="100%" />`}
  </svg></div>`;
}

function Row({ id, model, task, scale, width, present, chosen, past, bars, at }) {
  const name = model.names[task];
  const phase = model.phases[task];
  const phrase = (bar) => `${STAYS[bar.phase] ?? `was ${spoken(bar.phase)}`}${bar.phase === "running" && bar.attempt ? ` (attempt ${bar.attempt})` : ""}`;
  return html`<div class=${`row lane${chosen === task ? " chosen" : ""}${past ? " past" : ""}`} role="row" aria-rowindex=${at}>
    <span role="cell" class=${`who tone-${tone(phase)}`}><${Icon} name=${iconOf(phase)} />
      <a class="cut" href=${href(["runs", id], { show: "timeline", task: name })} title=${safe(name)}
        onClick=${(event) => { event.preventDefault(); ask({ task: name }, {}); }}><${Name} text=${name} /><span class="unseen">, ${spoken(model.states[task])}</span></a></span>
    <span role="cell" class="track">
      <svg width=${width} height=${ROW - 1} aria-hidden="true">
        ${bars && visibleBars(bars, scale, present, width).map(({ bar, x, width: wide }) => html`<${Bar} key=${`${bar.from} ${bar.phase}`} ...${{ bar, x, wide, phrase, present, failed: bar === bars.at(-1) && phase === "failed" }} />`)}
      </svg>
      <span class="unseen">${bars === null ? "being read" : told(bars, present, span, phrase)}</span>
    </span>
  </div>`;
}

const THIN = new Set(["queued", "waiting", "held", "retrying", "circuit_open", "half_open", "recovering"]);

function Bar({ bar, x, wide, phrase, present, failed }) {
  const thin = THIN.has(bar.phase);
  const word = bar.phase === "running" ? (bar.attempt > 1 ? `try ${bar.attempt}` : "") : spoken(bar.phase);
  return html`<g class=${`stay stay-${bar.phase} tone-${failed ? "bad" : tone(bar.phase)}${bar.to === null ? " lasting" : ""}`}>
    <title>${`${phrase(bar)} ${span((bar.to ?? present) - bar.from)}${bar.to === null ? " so far" : ""}, from ${clock(bar.from)}${bar.to === null ? "" : ` to ${clock(bar.to)}`}`}</title>
    <rect x=${x} y=${thin ? 12 : 6} width=${wide} height=${thin ? 8 : 20} rx=${Math.min(3, wide / 2)} />
    ${!thin && wide > 20 + word.length * 6.5 && word && html`<text x=${x + 6} y="20">${word}</text>`}
  </g>`;
}

function Key({ rows, version }) {
  const kinds = useMemo(() => {
    const found = new Set();
    for (const bars of rows.values()) for (const bar of bars) found.add(bar.phase);
    return Object.keys(STAYS).filter((phase) => found.has(phase));
  }, [version]);
  return kinds.length > 0 && html`<ul class="legend" aria-label="What the bars are">
    ${kinds.map((kind) => html`<li key=${kind} class="line"><svg viewBox="0 0 32 20" aria-hidden="true"><g class=${`stay stay-${kind} tone-${tone(kind)}`}>
      <rect x="1" y=${THIN.has(kind) ? 6 : 1} width="30" height=${THIN.has(kind) ? 8 : 18} rx="3" /></g></svg>${STAYS[kind]}</li>`)}
  </ul>`;
}

/** Let the axis be dragged, and zoomed with Ctrl and the wheel or with two fingers on a trackpad. */
function useDragged(track, doing) {
  const latest = useRef(doing);
  latest.current = doing;
  useEffect(() => {
    const box = track.current;
    let last = null;
    const on = {
      pointerdown(event) {
        last = event.clientX;
        box.setPointerCapture(event.pointerId);
      },
      pointermove(event) {
        if (last === null) return;
        latest.current.move((last - event.clientX) / box.clientWidth);
        last = event.clientX;
      },
      pointerup() {
        last = null;
      },
      wheel(event) {
        event.preventDefault();
        const about = (event.clientX - box.getBoundingClientRect().left) / box.clientWidth;
        if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) latest.current.move((event.deltaX || event.deltaY) / box.clientWidth);
        else latest.current.zoom(Math.exp(event.deltaY / 400), about);
      },
    };
    on.pointercancel = on.pointerup;
    for (const [name, heard] of Object.entries(on)) box.addEventListener(name, heard, { passive: false });
    return () => {
      for (const [name, heard] of Object.entries(on)) box.removeEventListener(name, heard);
    };
  }, []);
}
