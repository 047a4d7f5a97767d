// The runs: every job with its progress, filtered by state and by name, newest first; scrolling loads more.

import { html, useEffect, useMemo, useRef } from "../vendor/ui.js";
import { Ago, Empty, Gap, Icon, iconOf, Loaded, Name, Page, Progress, Since, State, tone, useWindow } from "../components.js";
import { ask, href } from "../router.js";
import { Still, useStill } from "../still.js";
import { now, useList } from "../store.js";
import { safe, spoken } from "../text.js";

const STATES = ["running", "pending", "submitted", "cancelling", "completed", "failed", "cancelled"];
const ROW = 57; // px, as style.css has it with its line; on a phone
const TALL = 97;
const PAGE = 100;
const AGES = [["", "At any time"], [3600, "In the last hour"], [86_400, "In the last day"], [604_800, "In the last week"]];

export function View({ query }) {
  const states = (query.state ?? "").split(",").filter(Boolean);
  const asked = new URLSearchParams([["limit", PAGE], ...states.map((state) => ["state", state])]);
  if (query.name) asked.set("name", query.name);
  const since = useMemo(() => Number(query.age) > 0 ? Math.floor(now.peek() - Number(query.age)) : null, [query.age]);
  if (since !== null) asked.set("newer_than", since);
  const jobs = useList(`api/jobs?${asked}`, { when: (event) => event.kind !== "worker" && event.kind !== "breaker" });
  const filtered = states.length > 0 || Boolean(query.name) || since !== null;
  return html`<${Page} title="Runs">
    <${Filters} states=${states} name=${query.name ?? ""} age=${query.age ?? ""} />
    <${Loaded} of=${jobs} what="the runs">${(items) => items.length
      ? html`<${Table} items=${items} list=${jobs} asked=${`${asked}`} />`
      : filtered
        ? html`<${Empty} title="No run is like that"><p><button type="button" class="quiet" onClick=${() => ask({ state: "", name: "", age: "" })}>Show all</button></p><//>`
        : html`<${Empty} title="No runs yet"><p>Submit one from your application, or by <code>callboard run FILE</code>.</p><//>`}
    <//>
  <//>`;
}

function Filters({ states, name, age }) {
  const timer = useRef(null);
  const input = useRef(null);
  useEffect(() => () => clearTimeout(timer.current), []);
  useEffect(() => {
    if (document.activeElement !== input.current) input.current.value = name; // the address was changed
  }, [name]);
  const find = (event) => {
    const text = event.target.value.trim();
    clearTimeout(timer.current);
    timer.current = setTimeout(() => ask({ name: text }), 200);
  };
  const toggle = (state) => ask({ state: states.includes(state) ? states.filter((one) => one !== state).join(",") : [...states, state].join(",") });
  return html`<div class="filters" role="search">
    <div class="find"><${Icon} name="search" />
      <input type="search" aria-label="Find by name" placeholder="Find by name" ref=${input} onInput=${find} maxlength="200" />
    </div>
    <div class="chips" role="group" aria-label="Only those that are">
      ${STATES.map((state) => html`<button key=${state} type="button" class=${`tone-${tone(state)}`} aria-pressed=${states.includes(state)} onClick=${() => toggle(state)}>
        <${Icon} name=${iconOf(state)} />${spoken(state)}</button>`)}
    </div>
    <select aria-label="Submitted" value=${age} onChange=${(event) => ask({ age: event.target.value })}>
      ${AGES.map(([seconds, words]) => html`<option key=${seconds} value=${seconds}>${words}</option>`)}
    </select>
  </div>`;
}

const phone = matchMedia("(max-width: 760px)");

function Table({ items, list, asked }) {
  const { next, more, busy } = list;
  const still = useStill(items, { whole: next.value === null, more, about: [asked], settled: !busy.value });
  const { rows, past } = still;
  const shown = useWindow(rows.length, phone.matches ? TALL : ROW);
  useEffect(() => {
    if (shown.last >= rows.length - 20) more();
  }, [shown.last, next.value]);
  return html`<${Still} of=${still}>
    <div class="rows runs" role="table" aria-label="Runs" aria-rowcount=${next.value === null ? rows.length + 1 : -1}>
      <div role="rowgroup"><div class="row heads" role="row" aria-rowindex="1">
        <span role="columnheader">State</span><span role="columnheader">Run</span><span role="columnheader">Progress</span>
        <span role="columnheader">Begun</span><span role="columnheader" class="end">Took</span>
      </div></div>
      <div role="rowgroup" ref=${shown.ref}>
        <${Gap} px=${shown.above} />
        ${rows.slice(shown.first, shown.last).map((job, index) => html`<${Row} key=${job.id} job=${job} past=${past.has(job.id)} at=${shown.first + index + 2} />`)}
        <${Gap} px=${shown.below} />
      </div>
    </div>
    ${next.value !== null && html`<button type="button" class="more" onClick=${more}>Show more</button>`}
  <//>`;
}

function Row({ job, past, at }) {
  const within = job.parent_id ? `child of ${job.parent_id}` : job.id === job.name ? null : job.id;
  const held = job.phase === "running" && ["held", "paused", "waiting"].includes(job.workstream_state);
  const why = job.error ?? job.reason;
  return html`<div class=${`row link${past ? " past" : ""}`} role="row" aria-rowindex=${at}>
    <span role="cell" class="cell-state"><${State} state=${held ? job.workstream_state : job.state} phase=${held ? job.workstream_state : job.phase} /></span>
    <span role="cell" class="cell-name two">
      <a href=${href(["runs", job.id])}><${Name} text=${job.name || job.id} /></a>
      <span class="second">${[within && html`<code><bdi>${safe(within)}</bdi></code>`, job.by && html`by <${Name} text=${job.by} />`, job.phase === "failed" && why && html`<span class="prose">${safe(why)}</span>`]
        .filter(Boolean).map((part, index) => index ? [" · ", part] : part)}</span>
    </span>
    <span role="cell" class="cell-progress"><${Progress} counts=${job.counts} total=${job.total} /></span>
    <span role="cell" class="cell-since"><${Ago} at=${job.started_at ?? job.created_at} /></span>
    <span role="cell" class="cell-long end"><${Since} from=${job.started_at} to=${job.finished_at} /></span>
  </div>`;
}
