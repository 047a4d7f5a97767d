// The application's machines: their states and timed events; for one machine, its possible events and its transitions.

import { html } from "../vendor/ui.js";
import { act } from "../actions.js";
import { Ago, Countdown, Due, Empty, Loaded, Name, Page, State, Time } from "../components.js";
import { may, whyNot } from "../me.js";
import { href } from "../router.js";
import { Still, useStill } from "../still.js";
import { now, segments, useList, useLive } from "../store.js";
import { counted, safe, spoken, timed } from "../text.js";
import { Change } from "./log.js";

const SHOWN = 200; // transitions

export function View({ parts }) {
  return parts.length === 2 ? html`<${Machine} name=${parts[1]} />` : html`<${List} />`;
}

const dueOf = (machine) => Object.entries(machine.due).sort(([, a], [, b]) => a - b);

function List() {
  const machines = useList("api/machines?limit=100", { when: ({ kind }) => kind === "machine" });
  const items = machines.data.value;
  const more = machines.next.value !== null;
  return html`<${Page} title="Machines" aside=${items?.length ? html`<span class="soft num">${counted(items.length, "machine")}${more ? " and more" : ""}</span>` : null}>
    <${Loaded} of=${machines} what="the machines">${(all) => all.length
      ? html`<${Table} items=${all} list=${machines} />
        ${more && html`<button type="button" class="more" onClick=${machines.more}>Show more</button>`}`
      : html`<${Empty} title="There are no machines"><p>An application spawns machines: entities with a transition table of its own.</p><//>`}
    <//>
  <//>`;
}

function Table({ items, list }) {
  const still = useStill(items, { whole: list.next.value === null, more: list.more, settled: !list.busy.value, grows: true });
  return html`<${Still} of=${still}><div class="rows machines" role="table" aria-label="Machines">
    <div role="rowgroup"><div class="row heads" role="row">
      <span role="columnheader">State</span><span role="columnheader">Name</span><span role="columnheader">Fires by itself</span>
      <span role="columnheader">Last moved</span>
    </div></div>
    <div role="rowgroup">${still.rows.map((machine) => html`<${Row} key=${machine.id} machine=${machine} past=${still.past.has(machine.id)} />`)}</div>
  </div><//>`;
}

function Row({ machine, past }) {
  const [first, ...others] = dueOf(machine);
  return html`<div class=${`row link${past ? " past" : ""}`} role="row">
    <span role="cell"><${State} state=${machine.state} phase=${machine.phase} /></span>
    <span role="cell" class="two">
      <a href=${href(["machines", machine.name])}><${Name} text=${machine.name} /></a>
      <span class="second">${safe(machine.machine)}</span>
    </span>
    <span role="cell" class="two">${first
      ? html`<span>${spoken(first[0])} in <${Countdown} to=${first[1]} /></span>${others.length > 0 && html`<span class="second">and ${counted(others.length, "timer")} after it</span>`}`
      : html`<span class="soft">${machine.finished_at ? "it has ended" : "no timed event"}</span>`}</span>
    <span role="cell" class="moved"><${Ago} at=${machine.updated_at} /></span>
  </div>`;
}

function Machine({ name }) {
  const path = `api/machines/${segments(name)}`;
  const mine = (event) => event.kind === "machine" && event.entity_id === name;
  const machine = useLive(path, { when: mine });
  const back = html`<p class="back"><a href=${href(["machines"])}>Machines</a></p>`;
  return html`<${Page} title=${name} heading=${html`<${Name} text=${name} />`} back=${back}>
    <${Loaded} of=${machine} what="the machine">${(told) => html`<div class="machine">
      <p class="standing"><${State} state=${told.state} phase=${told.phase} /> <span class="soft">${safe(told.machine)}</span></p>
      ${told.reason && html`<p class="prose">${timed(safe(told.reason), now.value)}</p>`}
      <section><h2>What it takes now</h2><${Events} machine=${told} path=${path} /></section>
      <dl class="facts">
        ${dueOf(told).map(([event, at]) => html`<dt key=${event}>${spoken(event)}</dt><dd>by itself in <${Countdown} to=${at} /> <span class="soft">(<${Due} at=${at} />)</span></dd>`)}
        <dt>Made</dt><dd><${Time} at=${told.created_at} /></dd>
        <dt>Last moved</dt><dd><${Time} at=${told.updated_at} /></dd>
      </dl>
      ${told.facts !== null && html`<section><h2>Facts</h2><pre class="value" tabindex="0" role="region" aria-label="Facts">${safe(JSON.stringify(told.facts, null, 2), { lines: true })}</pre></section>`}
      <section><h2>What it has been through</h2><${Past} id=${told.id} when=${mine} /></section>
    </div>`}<//>
  <//>`;
}

function Events({ machine, path }) {
  if (!machine.events.length) return html`<p class="soft">None: no event leaves this state.</p>`;
  if (!may("fire")) return html`<p>${machine.events.map(spoken).join(", ")}</p><p class="soft">${whyNot("fire")}</p>`;
  return html`<div class="actions" role="group" aria-label=${`Events of ${safe(machine.name)}`}>
    ${machine.events.map((event) => html`<button key=${event} type="button" onClick=${() => act({ verb: "fire", of: machine, at: path, body: { event } })}>
      ${spoken(event)}<span class="unseen"> at ${safe(machine.name)}</span></button>`)}
  </div>`;
}

function Past({ id, when }) {
  const asked = new URLSearchParams({ kind: "machine", entity: id, before: 0, limit: SHOWN });
  const past = useLive(`api/transitions?${asked}`, { when });
  return html`<${Loaded} of=${past} what="its transitions">${({ items, next }) => html`<${Lines} ...${{ items, next }} />`}<//>`;
}

function Lines({ items, next }) {
  const still = useStill(items, { key: ({ seq }) => seq, whole: next === null });
  return html`<${Still} of=${still}>
    <ol class="history">${still.rows.map((line) => html`<li key=${line.seq}>
      <span class="soft"><${Time} at=${line.at} /></span> <span class="change"><${Change} line=${line} /></span>
      <span class="soft">${spoken(line.event)}${line.metadata?.by ? html` by <${Name} text=${line.metadata.by} />` : ""}</span>
      ${line.reason && html`<span class="prose">${timed(safe(line.reason), now.value)}</span>`}</li>`)}</ol>
    ${next !== null && items.length >= SHOWN && html`<p class="soft">Older ones are in the journal.</p>`}<//>`;
}
