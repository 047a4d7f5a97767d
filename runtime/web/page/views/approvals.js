// Holds and approvals: first those that this person can decide, if the server knows the name, then the others. Each shows the
// missing approvals, the decisions so far, its times, and the two answers.

import { html } from "../vendor/ui.js";
import { Actions } from "../actions.js";
import { Ago, Countdown, Due, Empty, Icon, Loaded, Name, Page, Time } from "../components.js";
import { me } from "../me.js";
import { href } from "../router.js";
import { Still, useStill } from "../still.js";
import { now, segments, useList } from "../store.js";
import { counted, safe, spoken } from "../text.js";

const SOON = 3600; // s before its expiry from which a hold is shown as urgent

export function View() {
  const approvals = useList("api/approvals?limit=100");
  const items = approvals.data.value;
  const more = items && approvals.next.value !== null ? "+" : "";
  const yours = (items ?? []).filter((one) => one.yours !== false);
  const title = items === undefined ? "Approvals" : `Approvals (${yours.length}${more})`;
  return html`<${Page} title=${title} heading="Approvals" aside=${items?.length ? html`<span class="soft num">${counted(items.length, "hold")}${more} waiting</span>` : null}>
    <${Loaded} of=${approvals} what="what waits">${(held) => held.length
      ? html`<${Held} yours=${yours} others=${held.filter((one) => one.yours === false)} list=${approvals} />
          ${more && html`<button type="button" class="more" onClick=${approvals.more}>Show more</button>`}`
      : html`<${Empty} title="No approvals are waiting"><p>Held tasks and runs are listed here until enough people have approved them.</p><//>`}
    <//>
  <//>`;
}

function Held({ yours, others, list }) {
  if (!me.value?.name) return html`<${Cards} ...${{ list }} held=${yours} level=${2} />`;
  return html`
    <section class="waits"><h2>For you <span class="soft num">${yours.length}</span></h2>
      <${Cards} ...${{ list }} held=${yours} level=${3} none="No approvals are waiting for you." /></section>
    ${others.length > 0 && html`<section class="waits"><h2>For others <span class="soft num">${others.length}</span></h2><${Cards} ...${{ list }} held=${others} level=${3} /></section>`}`;
}

const keyOf = (one) => `${one.kind} ${one.entity_id}`;

function Cards({ held, level, list, none = null }) {
  const still = useStill(held, { key: keyOf, whole: list.next.value === null, settled: !list.busy.value, grows: true });
  return html`<${Still} of=${still}>${still.rows.length ? html`<ul class="cards">
    ${still.rows.map((one) => html`<li key=${keyOf(one)} class=${`card${still.past.has(keyOf(one)) ? " past" : ""}`}><${Hold} hold=${one} level=${level} past=${still.past.has(keyOf(one))} /></li>`)}</ul>` : html`<p class="soft">${none}</p>`}<//>`;
}

/** The path for a decision, and its body. */
export function answering({ job_id: job, task, approval }) {
  return {
    at: task === null || task === undefined ? `api/jobs/${segments(job)}` : `api/jobs/${segments(job)}/tasks/${segments(task)}`,
    body: approval ? { approval } : {},
  };
}

/** The decisions that this person may not make, with the reason. Approvers may also reject, but not their own job. */
export const notFor = ({ yours, why_not: why }) => yours === false ? { approve: `${why.charAt(0).toUpperCase()}${why.slice(1)}.` } : {};

/** The decisions: by whom, when, and with which reason. */
const Decisions = ({ of }) => html`<ul class="clauses">
  ${of.map((one, index) => html`<li key=${index} class=${`tone-${one.verdict === "approved" ? "good" : "bad"}`}>
    <${Icon} name=${one.verdict === "approved" ? "check" : "cross"} />
    <span class="prose">${spoken(one.verdict)}${one.by ? html` by <b><${Name} text=${one.by} /></b>` : ""} <span class="soft"><${Time} at=${one.at} /></span>${one.reason ? html`: ${safe(one.reason)}` : ""}</span></li>`)}
</ul>`;

function Hold({ hold, level, past }) {
  const [Title, Part] = [`h${level}`, `h${level + 1}`];
  const run = hold.job_name || hold.job_id;
  const named = hold.approval ?? hold.task ?? run;
  const until = hold.expires_at || null;
  const what = hold.approval ? "asked for by a running task" : hold.task ? "task" : "the whole run";
  return html`
    <header>
      <div>
        <${Title} class="what"><a href=${href(["runs", hold.job_id], { task: hold.task })}><${Name} text=${named} /></a><//>
        <p class="soft">${what}${hold.approval && hold.task ? html` <${Name} text=${hold.task} />` : null}</p>
      </div>
      ${until && html`<p class=${`num${until - now.value < SOON ? " urgent" : ""}`}><${Icon} name="clock" /> <${Countdown} to=${until} over="expired" /></p>`}
    </header>
    <p class="of"><a href=${href(["runs", hold.job_id])}><${Name} text=${run} /></a><small><bdi>${safe(hold.job_id)}</bdi></small></p>
    <div><${Part} class="part-of">Still missing<//><ul class="clauses">
      ${hold.missing.map((clause, index) => html`<li key=${index} class="tone-wait"><${Icon} name="person" /><span class="prose">${safe(clause)}</span></li>`)}
      ${!hold.missing.length && html`<li class="tone-good"><${Icon} name="check" /><span>nobody</span></li>`}
    </ul></div>
    ${hold.decisions.length > 0 && html`<div><${Part} class="part-of">Decided so far<//><${Decisions} of=${hold.decisions} /></div>`}
    <dl class="facts">
      <dt>Held since</dt><dd><${Time} at=${hold.since} /> <span class="soft">(<${Ago} at=${hold.since} />)</span></dd>
      ${until && html`<dt>Expires</dt><dd><${Due} at=${until} /></dd>`}
      ${hold.wait_until && html`<dt>Not before</dt><dd><${Due} at=${hold.wait_until} /></dd>`}
      ${hold.submitted_by && html`<dt>Submitted by</dt><dd><${Name} text=${hold.submitted_by} /></dd>`}
    </dl>
    ${hold.left_at && html`<p class="soft">Its body waits for it no longer: it may ask again, and then gets the answer.</p>`}
    ${past ? html`<p class="soft">It is not waiting any more.</p>` : html`<${Actions} of=${{ kind: hold.kind, id: hold.entity_id, name: named, state: "held", phase: "held", actions: hold.actions ?? ["approve", "reject"] }}
      refused=${notFor(hold)} ...${answering(hold)} />`}
  `;
}
