// The log of a run: all transitions of the job and of everything in it, newest first.
//
// Rules:
// - New lines appear at once while the top of the log is visible and no person uses the log. Otherwise they wait until the
//   reader presses a button, so that no line moves while it is read or clicked.
// - Older lines are read page by page when the reader comes near the end. Filters hide lines; if few remain,
//   older lines are read until there are enough, or none older.

import { html, useEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { Empty, Gap, Icon, Name, State, Time, Trouble, useWindow } from "../components.js";
import { json, Problem } from "../net.js";
import { ask, href } from "../router.js";
import { News, Still, useHeld, useStill } from "../still.js";
import { useEvents } from "../store.js";
import { clock, counted, iso, number, safe, spoken } from "../text.js";
import { phaseOf } from "./live-graph.js";

const ROW = 41; // px, as run.css has it with its line; on a phone
const TALL = 61;
const PAGE = 200;
const KEPT = 20_000; // lines
const SEVERITIES = ["info", "warning", "error", "critical"];
const KINDS = ["job", "workstream", "task", "approval", "worker", "breaker"];
const MARKS = { info: ["idle", "dots"], warning: ["warn", "question"], error: ["bad", "cross"], critical: ["bad", "bolt"] };

/** Both lists in the order of their numbers, each line once. */
export function merged(lines, more) {
  const falling = more.every((line, at) => at === 0 || line.seq < more[at - 1].seq);
  if (!lines.length || !more.length || (falling && more.at(-1).seq > lines[0].seq)) return [...more, ...lines]; // the usual case
  if (falling && more[0].seq < lines.at(-1).seq) return [...lines, ...more];
  const known = new Set(lines.map((line) => line.seq));
  const fresh = more.filter((line) => !known.has(line.seq));
  if (!fresh.length) return lines;
  const all = [...fresh, ...lines];
  for (let at = 1; at < all.length; at += 1) if (all[at - 1].seq < all[at].seq) return all.sort((a, b) => b.seq - a.seq);
  return all;
}

/** The name of a transition's entity in its workstream: "build" for the task "run/build". */
function nameOf(line) {
  const inside = line.kind !== "workstream" && line.workstream_id && line.entity_id.startsWith(`${line.workstream_id}/`);
  return inside ? line.entity_id.slice(line.workstream_id.length + 1) : line.entity_id;
}

/** The transitions of a job: {lines, older(), left, busy, problem}; `entity`: only the transitions of this entity. */
function useLines(id, entity = null) {
  const [lines, setLines] = useState([]);
  const [state, setState] = useState({ busy: true, left: true, problem: null, turn: 0 });
  const reading = useRef(false);
  const oldest = useRef(0); // the number before which no line was read yet; 0: no line was read
  const older = async () => {
    if (reading.current) return;
    reading.current = true;
    setState((was) => ({ ...was, busy: true, problem: null }));
    try {
      const asked = new URLSearchParams({ job: id, limit: PAGE, before: oldest.current });
      if (entity) asked.set("entity", entity);
      const { items, next } = await json("GET", `api/transitions?${asked}`);
      oldest.current = next;
      setLines((was) => merged(was, items));
      setState((was) => ({ ...was, busy: false, left: next !== null }));
    } catch (error) {
      setState((was) => ({ ...was, busy: false, problem: error instanceof Problem ? error : new Problem(0, { detail: String(error) }) }));
    } finally {
      reading.current = false;
    }
  };
  useEffect(() => {
    oldest.current = 0;
    setLines([]);
    void older();
  }, [id, entity, state.turn]);
  useEvents({
    events(batch) {
      const mine = batch.filter((event) => event.job_id === id && (entity === null || event.entity_id === entity));
      if (mine.length) {
        setLines((was) => {
          const all = merged(was, mine.reverse());
          if (all.length <= KEPT) return all;
          oldest.current = all[KEPT - 1].seq;
          return all.slice(0, KEPT);
        });
      }
    },
    reset: () => setState((was) => ({ ...was, turn: was.turn + 1, left: true })),
  });
  return { lines, older, ...state };
}

const phone = matchMedia("(max-width: 760px)");

export function Log({ id, query }) {
  const log = useLines(id);
  const kinds = (query.kind ?? "").split(",").filter(Boolean);
  const least = SEVERITIES.indexOf(query.severity ?? "info");
  const text = (query.name ?? "").toLowerCase();
  const { ref, held } = useHeld();
  const upTo = useRef(null); // the number of the newest line that is shown; null: all
  const [, redraw] = useState(0);
  const all = !kinds.length && least <= 0 && !text;
  const wanted = useMemo(
    () => all ? log.lines : log.lines.filter((line) => (!kinds.length || kinds.includes(line.kind)) && SEVERITIES.indexOf(line.severity) >= least && (!text || nameOf(line).toLowerCase().includes(text))),
    [log.lines, all, query.kind, least, text],
  );
  upTo.current = held ? (upTo.current ?? log.lines[0]?.seq ?? null) : null;
  const from = upTo.current === null ? 0 : wanted.findIndex((line) => line.seq <= upTo.current);
  const listed = from > 0 ? wanted.slice(from) : from < 0 ? [] : wanted;
  const shown = useWindow(listed.length, phone.matches ? TALL : ROW);

  useEffect(() => {
    if (log.left && !log.busy && !log.problem && shown.last >= listed.length - 20) void log.older();
  }, [shown.last, listed.length, log.busy, log.left]);
  const load = () => {
    upTo.current = log.lines[0]?.seq ?? null;
    redraw((count) => count + 1);
  };

  return html`<section class="log" aria-label="Log">
    <${Filters} kinds=${kinds} query=${query} />
    ${log.problem && html`<${Trouble} problem=${log.problem} again=${log.older} />`}
    ${!listed.length && !log.busy && html`<${Empty} title=${log.lines.length ? "No transition matches" : "Nothing has happened yet"} />`}
    <div class="still" ref=${ref}><${News} fresh=${from < 0 ? wanted.length : from} load=${load} box=${ref} /><div class=${`rows lines${listed.length ? "" : " none"}`} role="table" aria-label="Transitions, the newest first" aria-rowcount=${log.left ? -1 : listed.length + 1}>
      <div role="rowgroup"><div class="row heads" role="row" aria-rowindex="1">
        <span role="columnheader">Time</span><span role="columnheader">Of</span><span role="columnheader">Event</span>
        <span role="columnheader">Change</span><span role="columnheader">Why</span>
      </div></div>
      <div role="rowgroup" ref=${shown.ref}>
        <${Gap} px=${shown.above} />
        ${listed.slice(shown.first, shown.last).map((line, place) => html`<${Line} key=${line.seq} id=${id} line=${line} at=${shown.first + place + 2} />`)}
        <${Gap} px=${shown.below} />
      </div>
    </div></div>
    <p class="soft end" role="status">${log.busy ? "Reading …" : log.left ? "" : `${counted(log.lines.length, "transition")} in all`}</p>
  </section>`;
}

function Line({ id, line, at }) {
  const [kind, icon] = MARKS[line.severity] ?? MARKS.info;
  const name = nameOf(line);
  return html`<div class="row" role="row" aria-rowindex=${at}>
    <span role="cell" class=${`when tone-${kind}`}><${Icon} name=${icon} /><span class="unseen">${line.severity}: </span>
      <time datetime=${iso(line.at)} title=${iso(line.at)}>${clock(line.at)}<span class="ms">.${String(Math.floor((line.at % 1) * 1000)).padStart(3, "0")}</span></time></span>
    <span role="cell" class="cut"><span class="soft">${spoken(line.kind)}</span> ${line.kind === "task"
      ? html`<a href=${href(["runs", id], { show: "log", task: name })} onClick=${(event) => { event.preventDefault(); ask({ task: name }, {}); }}><${Name} text=${name} /></a>`
      : html`<${Name} text=${name} />`}</span>
    <span role="cell" class="cut">${spoken(line.event)}${line.attempt ? html` <span class="soft">try ${line.attempt}</span>` : ""}</span>
    <span role="cell" class="change"><${Change} line=${line} /></span>
    <span role="cell" class="cut why" title=${safe(line.reason)}>${safe(line.reason)}${line.worker_id ? html` <span class="soft">on <${Name} text=${line.worker_id} /></span>` : ""}</span>
  </div>`;
}

export function Change({ line }) {
  return html`${line.from_state !== null && line.from_state !== line.to_state && html`<span class="soft was">${spoken(line.from_state)}</span><span class="soft" aria-hidden="true">→</span><span class="unseen">to</span>`}
    <${State} state=${line.to_state} phase=${phaseOf(line)} />`;
}

/** The transitions of one entity, as a short list. */
export function History({ id, entity }) {
  const log = useLines(id, entity);
  const still = useStill(log.lines.slice(0, 100), { key: ({ seq }) => seq, whole: false, about: [id, entity], settled: !log.busy });
  return html`<${Still} of=${still}>
    ${log.problem && html`<${Trouble} problem=${log.problem} again=${log.older} />`}
    <ol class="history">${still.rows.map((line) => html`<li key=${line.seq}>
      <span class="soft"><${Time} at=${line.at} /></span> <span class="change"><${Change} line=${line} /></span>
      <span class="soft">${spoken(line.event)}${line.attempt ? `, try ${line.attempt}` : ""}</span>
      ${line.reason && html`<span class="prose">${safe(line.reason)}</span>`}</li>`)}</ol>
    ${log.lines.length > 100 && html`<p class="soft">${number(log.lines.length - 100)} older ones are in the log.</p>`}<//>`;
}

function Filters({ kinds, query }) {
  const timer = useRef(null);
  useEffect(() => () => clearTimeout(timer.current), []);
  const toggle = (kind) => ask({ kind: kinds.includes(kind) ? kinds.filter((one) => one !== kind).join(",") : [...kinds, kind].join(",") });
  const find = (event) => {
    const name = event.target.value.trim();
    clearTimeout(timer.current);
    timer.current = setTimeout(() => ask({ name }), 200);
  };
  return html`<div class="filters" role="search">
    <div class="find"><${Icon} name="search" />
      <input type="search" aria-label="Find by name" placeholder="Find by name" defaultValue=${query.name ?? ""} onInput=${find} maxlength="200" spellcheck=${false} /></div>
    <div class="chips" role="group" aria-label="Only of these kinds">
      ${KINDS.map((kind) => html`<button key=${kind} type="button" aria-pressed=${kinds.includes(kind)} onClick=${() => toggle(kind)}>${spoken(kind)}</button>`)}
    </div>
    <label class="least"><span>At least</span>
      <select value=${query.severity ?? "info"} onChange=${(event) => ask({ severity: event.target.value === "info" ? "" : event.target.value })}>
        ${SEVERITIES.map((severity) => html`<option key=${severity} value=${severity}>${severity}</option>`)}
      </select></label>
  </div>`;
}
