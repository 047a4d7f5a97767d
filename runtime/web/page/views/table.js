// The tasks of a run as a table: the data of the graph, for reading, for screen readers and for filters.

import { html } from "../vendor/ui.js";
import { Empty, Gap, Name, Reported, State, useWindow } from "../components.js";
import { ask, href } from "../router.js";
import { Still, useStill } from "../still.js";
import { number } from "../text.js";
import { Picking, usePicked } from "./picking.js";

const ROW = 41; // px, as run.css has it with its line
const NAMED = 3; // the most dependencies that are named

export function Tasks({ id, model, query, chosen }) {
  const picked = usePicked(model, query);
  const still = useStill(picked, { key: Number, about: [model.names.length, query.phase, query.name] });
  const { rows, past } = still;
  const shown = useWindow(rows.length, ROW);
  return html`<section aria-label="Tasks">
    <${Picking} model=${model} query=${query} />
    ${rows.length === 0 && html`<${Empty} title="No task is like that"><p><button type="button" class="quiet" onClick=${() => ask({ phase: "", name: "" })}>Show all</button></p><//>`}
    <${Still} of=${still}><div class=${`rows tasks${rows.length ? "" : " none"}`} role="table" aria-label="Tasks" aria-rowcount=${rows.length + 1}>
      <div role="rowgroup"><div class="row heads" role="row" aria-rowindex="1">
        <span role="columnheader">State</span><span role="columnheader">Task</span><span role="columnheader">Waits for, or its progress</span>
      </div></div>
      <div role="rowgroup" ref=${shown.ref}>
        <${Gap} px=${shown.above} />
        ${rows.slice(shown.first, shown.last).map((task, place) => html`<${Row} key=${task} ...${{ id, model, task, chosen }} past=${past.has(task)} at=${shown.first + place + 2} />`)}
        <${Gap} px=${shown.below} />
      </div>
    </div><//>
  </section>`;
}

function Row({ id, model, task, chosen, past, at }) {
  const name = model.names[task];
  const progress = model.progress.get(task);
  return html`<div class=${`row link${chosen === task ? " chosen" : ""}${past ? " past" : ""}`} role="row" aria-rowindex=${at}>
    <span role="cell"><${State} state=${model.states[task]} phase=${model.phases[task]} /></span>
    <span role="cell" class="cut"><a href=${href(["runs", id], { show: "tasks", task: name })} aria-current=${chosen === task ? "true" : null}
      onClick=${(event) => { event.preventDefault(); ask({ task: name }, {}); }}><${Name} text=${name} /></a>
      ${model.optional[task] && html` <span class="tag">optional</span>`}</span>
    <span role="cell" class="cut soft">${progress ? html`<${Reported} of=${progress} name=${name} />` : html`<${Needs} model=${model} task=${task} />`}</span>
  </div>`;
}

function Needs({ model, task }) {
  const needs = [...model.depends_on[task].map((other) => [other, ""]), ...model.after[task].map((other) => [other, "the end of "])];
  if (!needs.length) return "nothing";
  const left = needs.length - NAMED;
  return html`${needs.slice(0, NAMED).map(([other, how], place) => html`${place ? ", " : ""}${how}<${Name} text=${model.names[other]} />`)}${left > 0 ? ` and ${number(left)} more` : ""}`;
}
