// One run: its state, its progress, tasks that need a person, and views as graph, table, timeline and log.

import { html } from "../vendor/ui.js";
import { Actions } from "../actions.js";
import { Ago, Countdown, Due, Empty, Folded, Icon, iconOf, Loaded, Name, Page, Progress, Shown, Since, State, Time, tone } from "../components.js";
import { ask, href } from "../router.js";
import { Still, useStill } from "../still.js";
import { segments, useLive } from "../store.js";
import { counted, listed, number, safe, spoken } from "../text.js";
import { notFor } from "./approvals.js";
import { Graph } from "./graph.js";
import { useGraph } from "./live-graph.js";
import { Log } from "./log.js";
import { Tasks } from "./table.js";
import { Task } from "./task.js";
import { Tests } from "./tests.js";
import { Timeline } from "./timeline.js";

const TABS = [["graph", "Graph"], ["tasks", "Tasks"], ["timeline", "Timeline"], ["log", "Log"]];
const URGENT = ["held", "failed", "circuit_open"]; // phases of tasks that need a person
const TOLD = new Set(["held", "waiting", "paused", "cancelling"]); // states of a workstream that its job's state does not show
const NAMED = 3;
const EVERY = 3; // seconds
const BRIEF = 100; // characters of a published value that are shown at once

export function View({ parts: [, id], query }) {
  const path = `api/jobs/${segments(id)}`;
  const job = useLive(path, { when: (event) => event.job_id === id });
  const told = job.data.value;
  const graph = useGraph(id, told?.workstream);
  const held = useLive(told?.actions?.includes("approve") ? `${path}/approvals` : null, { when: (event) => event.job_id === id });
  const whole = (held?.data.value?.items ?? []).filter((one) => !one.task);
  const title = told?.name || id;
  return html`<${Page} title=${title} heading=${html`<${Name} text=${title} />`} back=${html`<a class="back" href=${href(["runs"])}>Runs</a>`}
      aside=${told && html`<${Actions} of=${told} at=${path} refused=${Object.assign({}, ...whole.map(notFor))} />`}>
    <${Loaded} of=${job} what="the run">${(read) => html`<${Run} id=${id} job=${read} query=${query} graph=${graph} />`}<//>
  <//>`;
}

function Run({ id, job, query, graph: { live, model } }) {
  const show = TABS.some(([name]) => name === query.show) ? query.show : "graph";
  const chosen = model && query.task ? model.numbers.get(query.task) : null;
  return html`
    <${Summary} id=${id} job=${job} model=${model} />
    <nav class="tabs" aria-label="Ways to see this run">
      ${TABS.map(([name, word]) => html`<a key=${name} href=${href(["runs", id], { show: name === "graph" ? "" : name, task: query.task })} aria-current=${show === name ? "page" : null}>${word}</a>`)}
    </nav>
    <div class=${`runbody${query.task ? " with-task" : ""}`}>
      <div class="runview">
        ${show === "log" ? html`<${Log} id=${id} query=${query} />`
          : html`<${Loaded} of=${live} what="the tasks">${() => !model ? null
            : !model.names.length ? html`<${Empty} title="No tasks yet"><p>They appear when the run has begun.</p><//>`
            : show === "tasks" ? html`<${Tasks} ...${{ id, model, query, chosen }} />`
            : show === "timeline" ? html`<${Timeline} ...${{ id, model, query, job, chosen }} />`
            : html`<${Graph} ...${{ id, model, chosen }} />`}<//>`}
      </div>
      ${query.task && model && html`<${Task} key=${query.task} id=${id} name=${query.task} model=${model} />`}
    </div>`;
}

function Summary({ id, job, model }) {
  const stream = job.workstream_state;
  const why = job.error ?? job.reason;
  return html`<div class="summary sheet">
    <div class="standing">
      <${State} state=${job.state} phase=${job.phase} />
      ${TOLD.has(stream) && job.phase === "running" && html`<${State} state=${stream} />`}
      ${job.waits_until && html`<span>until <${Due} at=${job.waits_until} />, for <${Countdown} to=${job.waits_until} /></span>`}
      <span class="soft">${job.started_at ? html`${job.finished_at ? "took " : "for "}<${Since} from=${job.started_at} to=${job.finished_at} /> · begun ` : "submitted "}
        <${Ago} at=${job.started_at ?? job.created_at} />${job.by ? html` by <${Name} text=${job.by} />` : ""}</span>
      ${job.retry_at && html`<span>next run in <${Countdown} to=${job.retry_at} />, <${Due} at=${job.retry_at} /></span>`}
    </div>
    <${Progress} counts=${job.counts} total=${job.total} />
    ${job.description && html`<p class="prose purpose">${safe(job.description, { lines: true })}</p>`}
    ${model && html`<${Attention} id=${id} model=${model} />`}
    ${why && html`<p class=${`prose${job.phase === "failed" ? " urgent" : ""}`}>${safe(why)}</p>`}
    <${Tests} results=${job.test_results} />
    <${Published} id=${id} job=${job} />
    <${Family} id=${id} job=${job} />
  </div>`;
}

/** The values that bodies have published. A publication is no transition: so they are read again by time. */
function Published({ id, job }) {
  const live = !job.finished_at;
  const read = useLive(`api/jobs/${segments(id)}/published`, { when: (event) => event.job_id === id && event.kind === "job", every: live ? EVERY : null });
  const found = Object.entries(read.data.value ?? {});
  if (!found.length) return null;
  return html`<section class="published" aria-label="Published"><h3>Published</h3><dl class="facts">
    ${found.map(([name, one]) => html`<dt key=${`of ${name}`}><${Name} text=${name} /></dt><dd key=${name}><${Given} ...${{ name, value: one.value }} />
      <span class="soft">by <${Name} text=${one.task_id.slice(one.task_id.lastIndexOf("/") + 1)} /> <${Ago} at=${one.at} /></span></dd>`)}
  </dl></section>`;
}

function Given({ name, value }) {
  const text = typeof value === "string" ? value : JSON.stringify(value);
  if (text.length <= BRIEF && !text.includes("\n")) return html`<code>${safe(text)}</code> `;
  return html`<${Folded} title=${html`<code>${safe(text.split("\n", 1)[0].slice(0, BRIEF))} …</code>`}><${Shown} title=${`Published as ${safe(name)}`} value=${value} /><//>`;
}

/** The related jobs and runs: its parent, its children, its earlier runs. */
function Family({ id, job }) {
  const several = (job.runs ?? 1) > 1;
  const children = job.children ?? [];
  if (id === job.name && !job.parent_id && !several && !children.length) return null;
  return html`<ul class="family">
    ${id !== job.name && html`<li><code><bdi>${safe(id)}</bdi></code></li>`}
    ${job.parent_id && html`<li><${Icon} name="child" /> child of <a href=${href(["runs", job.parent_id])}><${Name} text=${job.parent_id} /></a></li>`}
    ${several && html`<li><${Runs} id=${id} job=${job} /></li>`}
    ${children.length > 0 && html`<li><details><summary>${counted(children.length, "child run", "child runs")}</summary>
      <ul class="links">${children.slice(0, 200).map((child) => html`<li key=${child}><a href=${href(["runs", child])}><${Name} text=${child} /></a></li>`)}
        ${children.length > 200 && html`<li class="soft">and ${number(children.length - 200)} more</li>`}</ul></details></li>`}
  </ul>`;
}

function Runs({ id, job }) {
  const runs = useLive(`api/jobs/${segments(id)}/workstreams`, { when: (event) => event.job_id === id && event.kind === "workstream" });
  const read = runs.data.value;
  const items = Array.isArray(read) ? read : (read?.items ?? []);
  return html`<details><summary>run ${number(job.runs)} of ${number(job.runs)}</summary>
    <ul class="links">${[...items].sort((a, b) => b.run - a.run).map((one) => html`<li key=${one.run}>
      <span class="num">run ${number(one.run)}</span> <${State} state=${one.state} phase=${one.phase ?? one.state} />
      <span class="soft"><${Time} at=${one.started_at ?? one.created_at} />${one.finished_at ? html`, took <${Since} from=${one.started_at ?? one.created_at} to=${one.finished_at} />` : ""}</span>
      ${["held", "waiting"].includes(one.phase ?? one.state) && one.due_at && html`<span class="soft">until <${Due} at=${one.due_at} /></span>`}
      ${one.error || one.reason ? html`<span class="prose soft">${safe(one.error ?? one.reason)}</span>` : ""}</li>`)}</ul></details>`;
}

/** The tasks that need a person. */
function Attention({ id, model }) {
  model.changed.value; // drawn again when states change
  const found = URGENT.map((phase) => {
    const tasks = [];
    let count = 0;
    for (let task = 0; task < model.names.length; task += 1) if (model.phases[task] === phase && (count += 1) <= NAMED) tasks.push(task);
    return { phase, tasks, count };
  }).filter(({ count }) => count);
  const held = useLive(`api/jobs/${segments(id)}/approvals`, { when: (event) => event.job_id === id && (event.kind === "approval" || event.kind === "workstream") });
  const asked = (held.data.value?.items ?? []).filter((one) => one.approval || !one.task);
  const rows = [...asked.map((one) => ({ id: one.entity_id, one })), ...found.map((some) => ({ id: some.phase, some }))];
  const still = useStill(rows, { fixed: true });
  return html`<${Still} of=${still}>${still.rows.length > 0 && html`<ul class="attention" aria-label="What needs somebody">
    ${still.rows.map((row) => html`<${row.one ? Asked : Found} key=${row.id} ...${{ id, model, ...row }} />`)}</ul>`}<//>`;
}

const Asked = ({ id, one }) => html`<li class="tone-wait"><${Icon} name="person" /><span>${one.task
  ? html`<a href=${href(["runs", id], { task: one.task })} onClick=${(event) => { event.preventDefault(); ask({ task: one.task }, {}); }}><${Name} text=${one.task} /></a> asks for approval: <${Name} text=${one.approval} />`
  : html`the run waits for ${listed(one.missing.map((clause) => safe(clause))) || "nobody"}`}</span></li>`;

const Found = ({ id, model, some: { phase, tasks, count } }) => html`<li class=${`tone-${tone(phase)}`}><${Icon} name=${iconOf(phase)} />
  <span>${number(count)} ${spoken(phase)}: ${tasks.map((task, at) => html`${at ? ", " : ""}<a href=${href(["runs", id], { task: model.names[task] })}
    onClick=${(event) => { event.preventDefault(); ask({ task: model.names[task] }, {}); }}><${Name} text=${model.names[task]} /></a>`)}
    ${count > NAMED && html` and <a href=${href(["runs", id], { show: "tasks", phase })}>${number(count - NAMED)} more</a>`}</span></li>`;
