// The workers: their states, their load, and their last heartbeat. Below them: notices of recent problems.

import { html } from "../vendor/ui.js";
import { Actions } from "../actions.js";
import { Ago, Countdown, Empty, Loaded, Name, Page, State } from "../components.js";
import { Still, useStill } from "../still.js";
import { segments, useList } from "../store.js";
import { counted, number, safe } from "../text.js";
import { Notices } from "./notices.js";

const SLOTS = 16; // up to this capacity each slot is drawn

export function View() {
  const workers = useList("api/workers?limit=500", { when: (event) => event.kind === "worker" || event.kind === "task", every: 10 });
  const items = workers.data.value ?? [];
  const slots = items.reduce((sum, { capacity, finished_at: ended }) => sum + (ended ? 0 : capacity), 0);
  const taken = items.reduce((sum, { assigned }) => sum + assigned, 0);
  return html`<${Page} title="Workers" aside=${items.length ? html`<span class="soft num">${number(taken)} of ${counted(slots, "slot")} taken</span>` : null}>
    <${Loaded} of=${workers} what="the workers">${(all) => all.length
      ? html`<${Table} items=${all} list=${workers} />`
      : html`<${Empty} title="There are no workers"><p>A runtime starts the workers of its settings; by default one for its event loop.</p><//>`}
    <//>
    <${Notices} />
  <//>`;
}

function Table({ items, list }) {
  const still = useStill(items, { whole: list.next.value === null, settled: !list.busy.value, grows: true });
  return html`<${Still} of=${still}><div class="rows workers" role="table" aria-label="Workers">
    <div role="rowgroup"><div class="row heads" role="row">
      <span role="columnheader">State</span><span role="columnheader">Worker</span><span role="columnheader">Load</span>
      <span role="columnheader">Health</span><span role="columnheader" class="end">Actions</span>
    </div></div>
    <div role="rowgroup">${still.rows.map((worker) => html`<${Row} key=${worker.id} worker=${worker} past=${still.past.has(worker.id)} />`)}</div>
  </div><//>`;
}

function Row({ worker, past }) {
  const paused = worker.pause_reason ?? (worker.phase === "paused" ? worker.reason : null);
  return html`<div class=${`row${past ? " past" : ""}`} role="row">
    <span role="cell"><${State} state=${worker.state} phase=${worker.phase} /></span>
    <span role="cell" class="two">
      <b><${Name} text=${worker.name || worker.id} /></b>
      <span class="second">${safe(worker.engine)}${worker.capabilities?.length ? html` · ${safe(worker.capabilities.join(", "))}` : null} · incarnation ${number(worker.run)}</span>
      <${Metadata} of=${worker.metadata ?? {}} />
    </span>
    <span role="cell"><${Load} worker=${worker} /></span>
    <span role="cell" class="two">
      <${Health} worker=${worker} />
      ${paused ? html`<span class="second" title=${safe(paused)}>${safe(paused)}</span>` : null}
      ${worker.resume_at && html`<span class="second">resumes in <${Countdown} to=${worker.resume_at} /></span>`}
      ${worker.drain_until && html`<span class="second">stops its attempts in <${Countdown} to=${worker.drain_until} /></span>`}
    </span>
    <span role="cell" class="end">${past ? html`<span class="soft">It is no longer in the list.</span>` : html`<${Actions} brief of=${worker} at=${`api/workers/${segments(worker.name)}`} />`}</span>
  </div>`;
}

/** The metadata that the application has set for the worker. */
function Metadata({ of }) {
  const told = Object.entries(of);
  if (!told.length) return null;
  return html`<details class="second"><summary>metadata (${number(told.length)})</summary><dl class="facts">
    ${told.map(([word, value]) => html`<dt key=${word}><${Name} text=${word} /></dt><dd>${typeof value === "string" ? html`<${Name} text=${value} />` : html`<code>${safe(JSON.stringify(value))}</code>`}</dd>`)}
  </dl></details>`;
}

function Load({ worker }) {
  const { assigned, capacity } = worker;
  if (worker.finished_at) return html`<span class="soft">none: it has ended</span>`;
  const words = `${number(assigned)} of ${counted(capacity, "slot")}`;
  return html`<span class="meter">
    ${capacity <= SLOTS
      ? html`<span class="slots" role="img" aria-label=${words}>${Array.from({ length: capacity }, (_, index) => html`<span key=${index} class=${`slot${index < assigned ? " full" : ""}`}></span>`)}</span>`
      : html`<span class="bar tone-active" role="img" aria-label=${words}>
          ${assigned > 0 && html`<span class="part" style=${{ flexGrow: assigned }}></span>`}<span class="part rest" style=${{ flexGrow: capacity - assigned }}></span></span>`}
    <span class="num" aria-hidden="true">${number(assigned)}/${number(capacity)}</span>
  </span>`;
}

function Health({ worker }) {
  const { missed, finished_at: ended, last_seen: seen } = worker;
  if (ended) return html`<span class="soft">ended <${Ago} at=${ended} /></span>`;
  if (missed > 0) return html`<span class="urgent">${counted(missed, "check")} missed</span>`;
  return html`<span>well${seen ? html`, seen <${Ago} at=${seen} />` : null}</span>`;
}
