// The circuit breakers, one per tool: their states, the time until the next trial, and the parked tasks.

import { html } from "../vendor/ui.js";
import { Actions } from "../actions.js";
import { Ago, Countdown, Empty, Loaded, Name, Page, State } from "../components.js";
import { Still, useStill } from "../still.js";
import { segments, useList } from "../store.js";
import { number, safe, setting } from "../text.js";

export function View() {
  const breakers = useList("api/breakers?limit=500", { when: (event) => event.kind === "breaker" || event.kind === "task" });
  const items = breakers.data.value ?? [];
  const open = items.filter(({ phase }) => phase !== "closed").length;
  return html`<${Page} title="Breakers" aside=${items.length ? html`<span class="soft num">${open ? `${number(open)} of ${number(items.length)} not closed` : "all closed"}</span>` : null}>
    <${Loaded} of=${breakers} what="the breakers">${(all) => all.length
      ? html`<${Table} items=${all} list=${breakers} />`
      : html`<${Empty} title="There are no breakers"><p>A tool gets a breaker with the first task or step that names it.</p><//>`}
    <//>
  <//>`;
}

function Table({ items, list }) {
  const still = useStill(items, { whole: list.next.value === null, settled: !list.busy.value, grows: true });
  return html`<${Still} of=${still}><div class="rows breakers" role="table" aria-label="Breakers">
    <div role="rowgroup"><div class="row heads" role="row">
      <span role="columnheader">State</span><span role="columnheader">Tool</span><span role="columnheader">Failures</span>
      <span role="columnheader">Next</span><span role="columnheader" class="end">Actions</span>
    </div></div>
    <div role="rowgroup">${still.rows.map((breaker) => html`<${Row} key=${breaker.id} breaker=${breaker} past=${still.past.has(breaker.id)} />`)}</div>
  </div><//>`;
}

function Row({ breaker, past }) {
  const { failures, failure_threshold: threshold, parked = 0 } = breaker;
  return html`<div class=${`row${past ? " past" : ""}`} role="row">
    <span role="cell"><${State} state=${breaker.state} phase=${breaker.phase} /></span>
    <span role="cell" class="two">
      <b><${Name} text=${breaker.name || breaker.id} /></b>
      <span class="second">opens after ${number(threshold)} · cools down ${setting(breaker.cooldown)}${breaker.max_parallel != null && html` · <span class="num" title=${`says ${safe(breaker.limit_by)}`}>at most ${number(breaker.max_parallel)} at once</span>`}</span>
    </span>
    <span role="cell" class="two">
      <span class="num">${number(failures)} of ${number(threshold)} in a row</span>
      ${breaker.reason && html`<span class="second" title=${safe(breaker.reason)}>${safe(breaker.reason)}</span>`}
    </span>
    <span role="cell" class="two"><${Next} breaker=${breaker} />${parked > 0 && html`<span class="second num">${number(parked)} parked</span>`}</span>
    <span role="cell" class="end">${past ? html`<span class="soft">It is no longer in the list.</span>` : html`<${Actions} brief of=${breaker} at=${`api/breakers/${segments(breaker.name)}`} />`}</span>
  </div>`;
}

function Next({ breaker }) {
  if (breaker.phase === "open") return breaker.due_at ? html`<span>allows a trial in <${Countdown} to=${breaker.due_at} /></span>` : html`<span>open until it is reset</span>`;
  if (breaker.phase === "half_open") return html`<span>${breaker.probe ? "one attempt is testing it" : "lets one attempt through"}</span>`;
  if (breaker.not_before) return html`<span title="the tool asked for a pause">pauses, starts again in <${Countdown} to=${breaker.not_before} /></span>`;
  return html`<span class="soft">attempts may start</span>${breaker.failures > 0 && html`<span class="second">last failure <${Ago} at=${breaker.updated_at} /></span>`}`;
}
