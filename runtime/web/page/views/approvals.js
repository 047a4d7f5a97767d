// What waits for people: who is still missing, since when, until when, and the two answers to it.

import { html } from "../vendor/ui.js";
import { Actions } from "../actions.js";
import { Ago, Countdown, Empty, Icon, Loaded, Name, Page, Time } from "../components.js";
import { href } from "../router.js";
import { now, segments, useList } from "../store.js";
import { counted, safe } from "../text.js";

const SOON = 3600; // s before it expires that a hold is shown as urgent

export function View() {
  const approvals = useList("api/approvals?limit=100");
  const items = approvals.data.value;
  const title = items === undefined ? "Approvals" : `Approvals (${items.length}${approvals.next.value === null ? "" : "+"})`;
  return html`<${Page} title=${title} heading="Approvals" aside=${items?.length ? html`<span class="soft num">${counted(items.length, "hold")} waiting</span>` : null}>
    <${Loaded} of=${approvals} what="what waits">${(held) => held.length
      ? html`<ul class="cards">${held.map((one) => html`<li key=${`${one.kind} ${one.entity_id}`} class="card"><${Hold} hold=${one} /></li>`)}</ul>
          ${approvals.next.value !== null && html`<button type="button" class="more" onClick=${approvals.more}>Show more</button>`}`
      : html`<${Empty} title="Nothing waits for anybody"><p>Tasks and runs with a hold are here until enough people have approved them.</p><//>`}
    <//>
  <//>`;
}

/** Where the answer to it is posted, and what it has to say beside. */
export function answering({ job_id: job, task, approval }) {
  return {
    at: task === null || task === undefined ? `api/jobs/${segments(job)}` : `api/jobs/${segments(job)}/tasks/${segments(task)}`,
    body: approval ? { approval } : {},
  };
}

function Hold({ hold }) {
  const named = hold.approval ?? hold.task ?? hold.job_id;
  const until = hold.expires_at || null;
  const what = hold.approval ? "asked for by a running task" : hold.task ? "task" : "run";
  return html`
    <header>
      <div>
        <h2><a href=${href(["runs", hold.job_id], { task: hold.task })}><${Name} text=${named} /></a></h2>
        <p class="soft">${what} in <${Name} text=${hold.job_id} />${hold.approval && hold.task ? html` · <${Name} text=${hold.task} />` : null}</p>
      </div>
      ${until && html`<p class=${`num${until - now.value < SOON ? " urgent" : ""}`}><${Icon} name="clock" /> <${Countdown} to=${until} over="expired" /></p>`}
    </header>
    <div><h3>Still missing</h3><ul class="clauses">
      ${hold.missing.map((clause, index) => html`<li key=${index} class="tone-wait"><${Icon} name="person" /><span class="prose">${safe(clause)}</span></li>`)}
      ${!hold.missing.length && html`<li class="tone-good"><${Icon} name="check" /><span>nobody</span></li>`}
    </ul></div>
    ${hold.approved_by.length > 0 && html`<div><h3>Approved by</h3><ul class="clauses">
      ${hold.approved_by.map((who, index) => html`<li key=${index} class="tone-good"><${Icon} name="check" /><${Name} text=${who} /></li>`)}
    </ul></div>`}
    <dl class="facts">
      <dt>Held since</dt><dd><${Time} at=${hold.since} /> <span class="soft">(<${Ago} at=${hold.since} />)</span></dd>
      ${until && html`<dt>Expires</dt><dd><${Time} at=${until} /></dd>`}
      ${hold.wait_until && html`<dt>Not before</dt><dd><${Time} at=${hold.wait_until} /></dd>`}
      ${hold.submitted_by && html`<dt>Submitted by</dt><dd><${Name} text=${hold.submitted_by} /></dd>`}
    </dl>
    <${Actions} of=${{ kind: hold.kind, id: hold.entity_id, name: named, state: "held", phase: "held", actions: hold.actions ?? ["approve", "reject"] }} ...${answering(hold)} />
  `;
}
