// What waits for people: for you first, where the server knows who you are, then for others. Who is still missing, who has
// said what, since when, until when, and the two answers to it.

import { html } from "../vendor/ui.js";
import { Actions } from "../actions.js";
import { Ago, Countdown, Empty, Icon, Loaded, Name, Page, Time } from "../components.js";
import { me } from "../me.js";
import { href } from "../router.js";
import { now, segments, useList } from "../store.js";
import { counted, safe, spoken } from "../text.js";

const SOON = 3600; // s before it expires that a hold is shown as urgent

export function View() {
  const approvals = useList("api/approvals?limit=100");
  const items = approvals.data.value;
  const more = items && approvals.next.value !== null ? "+" : "";
  const yours = (items ?? []).filter((one) => one.yours !== false);
  const title = items === undefined ? "Approvals" : `Approvals (${yours.length}${more})`;
  return html`<${Page} title=${title} heading="Approvals" aside=${items?.length ? html`<span class="soft num">${counted(items.length, "hold")}${more} waiting</span>` : null}>
    <${Loaded} of=${approvals} what="what waits">${(held) => held.length
      ? html`<${Held} yours=${yours} others=${held.filter((one) => one.yours === false)} />
          ${more && html`<button type="button" class="more" onClick=${approvals.more}>Show more</button>`}`
      : html`<${Empty} title="Nothing waits for anybody"><p>Tasks and runs with a hold are here until enough people have approved them.</p><//>`}
    <//>
  <//>`;
}

function Held({ yours, others }) {
  if (!me.value?.name) return html`<${Cards} held=${yours} level=${2} />`;
  return html`
    <section class="waits"><h2>For you <span class="soft num">${yours.length}</span></h2>
      ${yours.length ? html`<${Cards} held=${yours} level=${3} />` : html`<p class="soft">Nothing waits for you.</p>`}</section>
    ${others.length > 0 && html`<section class="waits"><h2>For others <span class="soft num">${others.length}</span></h2><${Cards} held=${others} level=${3} /></section>`}`;
}

const Cards = ({ held, level }) => html`<ul class="cards">
  ${held.map((one) => html`<li key=${`${one.kind} ${one.entity_id}`} class="card"><${Hold} hold=${one} level=${level} /></li>`)}</ul>`;

/** Where the answer to it is posted, and what it has to say beside. */
export function answering({ job_id: job, task, approval }) {
  return {
    at: task === null || task === undefined ? `api/jobs/${segments(job)}` : `api/jobs/${segments(job)}/tasks/${segments(task)}`,
    body: approval ? { approval } : {},
  };
}

/** The answers that are not for who is here, with the reason. Whoever may decide may reject, but for what they submitted. */
export const notFor = ({ yours, why_not: why }) => yours === false ? { approve: `${why.charAt(0).toUpperCase()}${why.slice(1)}.` } : {};

/** Who has decided, when and why. */
const Decisions = ({ of }) => html`<ul class="clauses">
  ${of.map((one, index) => html`<li key=${index} class=${`tone-${one.verdict === "approved" ? "good" : "bad"}`}>
    <${Icon} name=${one.verdict === "approved" ? "check" : "cross"} />
    <span class="prose">${spoken(one.verdict)}${one.by ? html` by <b><${Name} text=${one.by} /></b>` : ""} <span class="soft"><${Time} at=${one.at} /></span>${one.reason ? html`: ${safe(one.reason)}` : ""}</span></li>`)}
</ul>`;

function Hold({ hold, level }) {
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
      ${until && html`<dt>Expires</dt><dd><${Time} at=${until} /></dd>`}
      ${hold.wait_until && html`<dt>Not before</dt><dd><${Time} at=${hold.wait_until} /></dd>`}
      ${hold.submitted_by && html`<dt>Submitted by</dt><dd><${Name} text=${hold.submitted_by} /></dd>`}
    </dl>
    <${Actions} of=${{ kind: hold.kind, id: hold.entity_id, name: named, state: "held", phase: "held", actions: hold.actions ?? ["approve", "reject"] }}
      refused=${notFor(hold)} ...${answering(hold)} />
  `;
}
