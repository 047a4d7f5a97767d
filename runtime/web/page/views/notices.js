// Stored notices: errors of actors, hooks, guards and other code, which no transition reports.
//
// Without notices nothing is shown. A traceback can be opened. All texts are untrusted.

import { html } from "../vendor/ui.js";
import { Ago, Icon, Name, Trouble } from "../components.js";
import { Still, useStill } from "../still.js";
import { useList } from "../store.js";
import { counted, number, safe, spoken } from "../text.js";

const SHOWN = 50; // the newest
const MARKS = { warning: ["warn", "question"], error: ["bad", "cross"], critical: ["bad", "bolt"] };

export function Notices() {
  const list = useList(`api/notices?limit=${SHOWN}`, { when: (event) => event.severity !== "info", every: 10 });
  const items = list.data.value ?? [];
  if (list.problem.value && !items.length) return html`<${Trouble} problem=${list.problem.value} again=${list.reload} />`;
  if (!items.length) return null;
  return html`<section class="noticed" aria-labelledby="noticed">
    <h2 id="noticed">Notices</h2>
    <${Table} items=${items} list=${list} />
    ${list.next.value !== null && html`<p class="soft end">Only the newest ${number(items.length)} are shown; <code>callboard notices</code> lists all.</p>`}
  </section>`;
}

function Table({ items, list }) {
  const still = useStill(items, { whole: list.next.value === null, settled: !list.busy.value });
  return html`<${Still} of=${still}><div class="rows notices" role="table" aria-label="Notices, the newest first">
    <div role="rowgroup"><div class="row heads" role="row">
      <span role="columnheader">Last</span><span role="columnheader">Of</span><span role="columnheader">What went wrong</span>
    </div></div>
    <div role="rowgroup">${still.rows.map((notice) => html`<${Row} key=${notice.id} notice=${notice} past=${still.past.has(notice.id)} />`)}</div>
  </div><//>`;
}

function Row({ notice, past }) {
  const [kind, icon] = MARKS[notice.severity] ?? MARKS.warning;
  const whom = notice.others ? "several" : notice.entity_id ?? notice.kind;
  return html`<div class=${`row${past ? " past" : ""}`} role="row">
    <span role="cell" class=${`when tone-${kind}`}><${Icon} name=${icon} /><span class="unseen">${notice.severity}: </span><${Ago} at=${notice.at} /></span>
    <span role="cell" class="two">
      <b><${Name} text=${whom} /></b>
      <span class="second">${spoken(notice.event)}${notice.count > 1 ? html` · ${counted(notice.count, "time")} since <${Ago} at=${notice.first_at} />` : null}</span>
    </span>
    <div role="cell" class="what">
      <span class="prose">${safe(notice.text)}</span>
      ${notice.traceback && html`<details><summary>Traceback</summary><pre>${safe(notice.traceback, { lines: true })}</pre></details>`}
    </div>
  </div>`;
}
