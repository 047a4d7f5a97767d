// One task of a run: its state and the reason, its outputs, and its actions.

import { html, useLayoutEffect, useMemo, useRef, useState } from "../vendor/ui.js";
import { Actions, VERBS, verbsOf } from "../actions.js";
import { Countdown, Due, Folded, Icon, Loaded, Name, Reported, Shown, Since, State, Time } from "../components.js";
import { ask, href } from "../router.js";
import { segments, useLive } from "../store.js";
import { counted, number, safe, span, spoken } from "../text.js";
import { notFor } from "./approvals.js";
import { Emitted } from "./emitted.js";
import { byItself, leadsTo } from "./leads.js";
import { History } from "./log.js";
import { Output } from "./output.js";
import { bytes } from "./sizes.js";
import { Steps } from "./steps.js";
import { Tests } from "./tests.js";

const LIVE = new Set(["running", "validating", "cancelling", "timed_out", "recovering"]);
const ANSWERS = new Set(["approve", "reject"]);
const LISTED = 12; // the most links of one kind that are shown without a click

export function Task({ id, name, model }) {
  const path = `api/jobs/${segments(id)}/tasks/${segments(name)}`;
  const mine = (event) => event.job_id === id && (event.entity_id.endsWith(`/${name}`) || event.entity_id.includes(`/${name}/`));
  const task = useLive(path, { when: mine });
  const attempts = useLive(`${path}/attempts`, { when: mine });
  const top = useRef(null);
  useLayoutEffect(() => {
    top.current?.focus({ preventScroll: true });
    if (top.current?.getBoundingClientRect().top < 48 || innerWidth < 1100) top.current?.scrollIntoView({ block: "start" });
  }, [name]);
  return html`<aside class="task sheet" aria-label=${`Task ${safe(name)}`}>
    <header>
      <h2 ref=${top} tabindex="-1"><${Name} text=${name} /></h2>
      <a class="closing" href=${href(["runs", id], {})} aria-label="Close the task" onClick=${(event) => { event.preventDefault(); ask({ task: "" }, {}); }}><${Icon} name="close" /></a>
    </header>
    <${Loaded} of=${task} what="the task">${(told) => html`<${Told} ...${{ id, path, model, attempts }} task=${told} when=${mine} />`}<//>
  </aside>`;
}

// Lost and postponed attempts do not count against max_attempts: the number of the last attempt may be higher.
function nth(task) {
  const { lost_attempts: lost = 0, deferrals: off = 0 } = task.facts ?? {};
  const most = Math.max(task.attempt, task.max_attempts + lost + off);
  const more = [lost && `${number(lost)} lost`, off && `${number(off)} put off`, task.round > 1 && `round ${number(task.round)}`].filter(Boolean).join(", ");
  return `attempt ${number(task.attempt)}${most > 1 ? ` of ${number(most)}` : ""}${more ? ` (${more})` : ""}`;
}

function Told({ id, path, model, task, attempts, when }) {
  const tried = listOf(attempts.data.value);
  const held = useHeld(id, task);
  const live = LIVE.has(task.phase);
  return html`
    <p class="standing"><${State} state=${task.state} phase=${task.phase} />
      ${task.attempt > 0 && html`<span class="soft">${nth(task)}</span>`}
      ${task.started_at && html`<span class="soft">${task.finished_at ? "took " : "for "}<${Since} from=${task.started_at} to=${task.finished_at} /></span>`}
      ${task.receive && html`<span class="tag">receives <${Name} text=${task.receive} /></span>`}
      ${task.optional && html`<span class="tag">optional</span>`}</p>
    <${At} task=${task} model=${model} />
    ${task.reason && task.reason !== task.last_error && html`<p class="prose">${safe(task.reason)}</p>`}
    <${Trouble} task=${task} attempts=${tried} />
    <${Hold} task=${task} path=${path} held=${held} />
    <${Next} task=${task} path=${path} refused=${Object.assign({}, ...held.mine.filter((one) => !one.approval).map(notFor))} />
    <${Outputs} path=${path} task=${task} attempts=${tried} />
    ${!task.command && html`<${Emitted} key=${`text ${path}`} path=${path} live=${live} />`}
    ${(task.flow || (live && !task.command)) && html`<${Steps} key=${path} ...${{ task, path, live, when }} />`}
    <${Attempts} attempts=${tried} />
    <${Tests} results=${task.test_results} />
    <${Value} title="Result" value=${task.result} />
    <${Value} title=${task.finished_at ? "Last details" : "Details"} value=${task.details} />
    <${Edges} id=${id} task=${task} model=${model} />
    <${Facts} task=${task} />
    <${Folded} title="Transitions"><${History} id=${id} entity=${task.id} /><//>`;
}

/** How far the running body is. What the graph has of it is newer than what was read of the task. */
function At({ task, model }) {
  model.changed.value; // drawn again when it changes
  const place = model.numbers.get(task.name);
  const told = place === undefined ? task.progress : model.progress.get(place);
  return told && LIVE.has(task.phase) ? html`<${Reported} of=${told} name=${task.name} />` : null;
}

const listOf = (data) => (Array.isArray(data) ? data : (data?.items ?? []));

const Section = ({ title, children }) => html`<section><h3>${title}</h3>${children}</section>`;

function Trouble({ task, attempts }) {
  if (!task.last_error) return null;
  const trace = [...attempts].sort((a, b) => a.attempt - b.attempt).findLast((one) => one.traceback)?.traceback;
  const kind = task.phase === "failed" ? "bad" : "warn";
  if (task.phase === "completed") return html`<${Folded} title=${`What went wrong before (${number(task.error_count)})`}><pre>${safe(task.last_error, { lines: true })}</pre><//>`;
  return html`<div class=${`problem tone-${kind}`}>
    <h3><${Icon} name=${kind === "bad" ? "cross" : "question"} /> ${task.error_type ? html`<code>${safe(task.error_type)}</code>` : "What went wrong"}
      ${task.error_category && task.error_category !== "unknown" && html`<span class="tag">${spoken(task.error_category)}</span>`}${task.error_count > 1 && html`<span class="tag">${number(task.error_count)} times</span>`}</h3>
    <pre>${safe(task.last_error, { lines: true })}</pre>
    ${trace && html`<${Folded} title="Traceback"><pre tabindex="0" role="region" aria-label="Traceback">${safe(trace, { lines: true })}</pre><//>`}
  </div>`;
}

/** The holds of a task that wait for people: its own hold, and the approvals that its body waits for. */
function useHeld(id, task) {
  const asking = task.phase === "held" || (task.actions ?? []).includes("approve");
  const held = useLive(asking ? `api/jobs/${segments(id)}/approvals` : null, { when: (event) => event.job_id === id });
  return { asking, mine: listOf(held?.data.value).filter((one) => one.task === task.name) };
}

function Hold({ task, path, held: { asking, mine } }) {
  if (!asking && !task.decisions?.length) return null;
  return html`<${Section} title="Approval">
    ${mine.map((one) => html`<ul class="clauses" key=${one.entity_id}>
      ${one.approval && html`<li><b><${Name} text=${one.approval} /></b></li>`}
      ${(one.missing ?? []).map((clause, at) => html`<li key=${at} class="tone-wait"><${Icon} name="person" /><span class="prose">missing: ${safe(clause)}</span></li>`)}
      ${one.approval && (one.approved_by ?? []).map((who, at) => html`<li key=${`by ${at}`} class="tone-good"><${Icon} name="check" /><span class="prose">approved by <b><${Name} text=${who} /></b></span></li>`)}
      ${one.approval && html`<li><${Actions} of=${{ kind: one.kind, id: one.entity_id, name: one.approval, state: "held", phase: "held", actions: one.actions ?? ["approve", "reject"] }} at=${path} body=${{ approval: one.approval }} refused=${notFor(one)} /></li>`}
    </ul>`)}
    <ul class="clauses">${(task.decisions ?? []).map((one, at) => html`<li key=${at} class=${`tone-${one.verdict === "approved" ? "good" : "bad"}`}>
      <${Icon} name=${one.verdict === "approved" ? "check" : "cross"} />
      <span class="prose">${spoken(one.verdict)}${one.by ? html` by <b><${Name} text=${one.by} /></b>` : ""} <span class="soft"><${Time} at=${one.at} /></span>${one.reason ? html`: ${safe(one.reason)}` : ""}</span></li>`)}</ul>
    ${task.phase === "held" && task.hold_until && html`<p class="soft">expires in <${Countdown} to=${task.hold_until} />, <${Due} at=${task.hold_until} /></p>`}
  <//>`;
}

function Next({ task, path, refused }) {
  const verbs = verbsOf(task).filter((verb) => task.phase === "held" || !ANSWERS.has(verb)); // a body's approvals have their own buttons
  const itself = byItself(task);
  if (!verbs.length && !itself) return null;
  const step = ([words, state]) => html`${words} ${state && html`<${State} state=${state} />`}`;
  return html`<${Section} title="Next steps">
    <ul class="nexts">
      ${itself && html`<li><span class="soft"><${Icon} name="clock" /> <span>by itself</span></span><span>in <${Countdown} to=${task.due_at} />, <${Due} at=${task.due_at} /> ${step(itself)}</span></li>`}
      ${verbs.map((verb) => html`<li key=${verb}><span>${VERBS[verb].label}</span><span>${step(leadsTo(verb, task) ?? ["", null])}</span></li>`)}
    </ul>
    <${Actions} of=${task} at=${path} only=${verbs} refused=${refused} />
  <//>`;
}

function Outputs({ path, task, attempts }) {
  const [chosen, choose] = useState(null);
  const [none, setNone] = useState(null); // the attempt without output, of a function
  const shownOf = chosen ?? task.attempt;
  const written = attempts.filter((one) => one.output_size !== null && one.output_size !== undefined);
  const live = task.command !== false && LIVE.has(task.phase);
  const known = written.length > 0 || (task.output_size ?? null) !== null;
  if (!known && (!live || none === shownOf)) return null;
  const past = chosen !== null && chosen !== task.attempt;
  return html`<${Section} title="Output">
    ${attempts.length > 1 && html`<label class="ofattempt"><span class="soft">of attempt</span>
      <select value=${shownOf} onChange=${(event) => choose(Number(event.target.value))}>
        ${attempts.map((one) => html`<option key=${one.attempt} value=${one.attempt}>${one.attempt}${one.end ? ` (${spoken(one.end)})` : ""}</option>`)}
      </select></label>`}
    ${none === shownOf ? html`<p class="soft">No output was kept.</p>` : html`<${Output} key=${shownOf} onNone=${() => setNone(shownOf)} path=${past ? `${path}/attempts/${chosen}/output` : `${path}/output`} running=${live && !past} written=${past ? null : task.output_size} />`}
  <//>`;
}

const ENDS = { succeeded: "completed", failed: "failed", timed_out: "timed_out", lost: "recovering", cancelled: "cancelled", returned: "queued" };

function came(one) {
  const known = [
    one.worker_id && `on ${one.worker_id}`, one.exit_code !== null && one.exit_code !== undefined && `exit code ${one.exit_code}`,
    one.output_size && `${bytes(one.output_size)} of output`, (one.cpu_seconds ?? null) !== null && `${span(one.cpu_seconds)} of CPU`,
    one.peak_memory_bytes && `${bytes(one.peak_memory_bytes)} of memory`,
    one.left_behind?.length > 0 && `left behind ${counted(one.left_behind.length, "process", "processes")} (${one.left_behind.join(", ")})`, one.error,
  ];
  return known.filter(Boolean).map((part) => safe(part)).join(" · ");
}

function Attempts({ attempts }) {
  if (!attempts.length) return null;
  return html`<${Section} title="Attempts"><div class="scrolling" tabindex="0" role="region" aria-label="Attempts">
    <table><thead><tr><th>No.</th><th>Ended</th><th>Began</th><th class="end">Took</th></tr></thead>
      <tbody>${[...attempts].sort((a, b) => b.attempt - a.attempt).map((one) => html`<tr key=${one.attempt}>
        <td class="num">${number(one.attempt)}</td>
        <td>${one.end ? html`<${State} state=${one.end} phase=${ENDS[one.end] ?? one.end} />` : html`<${State} state="running" />`}</td>
        <td class="num"><${Time} at=${one.claimed_at} /></td>
        <td class="num end">${one.ended_at ? span(one.duration_ms !== null && one.duration_ms !== undefined ? one.duration_ms / 1000 : one.ended_at - one.claimed_at) : html`<${Since} from=${one.claimed_at} />`}</td>
      </tr><tr key=${`${one.attempt} more`} class="more-of"><td></td><td colspan="3" class="prose">${came(one)}</td></tr>`)}</tbody></table></div>
  <//>`;
}

function Value({ title, value }) {
  return (value ?? null) === null ? null : html`<${Section} title=${title}><${Shown} ...${{ title, value }} /><//>`;
}

function Edges({ id, task, model }) {
  const number_ = model.numbers.get(task.name);
  model.changed.value; // drawn again when states change
  const followers = useMemo(() => {
    const found = [];
    if (number_ !== undefined) model.names.forEach((_, other) => (model.depends_on[other].includes(number_) || model.after[other].includes(number_)) && found.push(other));
    return found;
  }, [model, number_]);
  if (number_ === undefined) return null;
  const [hard, soft] = [model.depends_on[number_], model.after[number_]];
  if (!hard.length && !soft.length && !followers.length) return null;
  return html`<${Section} title="Neighbours"><dl class="facts">
    ${hard.length > 0 && html`<dt>Depends on</dt><dd><${Links} ...${{ id, model }} tasks=${hard} /></dd>`}
    ${soft.length > 0 && html`<dt>After</dt><dd><${Links} ...${{ id, model }} tasks=${soft} /></dd>`}
    ${followers.length > 0 && html`<dt>Dependents</dt><dd><${Links} ...${{ id, model }} tasks=${followers} /></dd>`}
  </dl><//>`;
}

function Links({ id, model, tasks }) {
  const [all, setAll] = useState(false);
  const shown = all ? tasks.slice(0, 500) : tasks.slice(0, LISTED);
  return html`<ul class="links">${shown.map((other) => html`<li key=${other}><a href=${href(["runs", id], { task: model.names[other] })}
    onClick=${(event) => { event.preventDefault(); ask({ task: model.names[other] }, {}); }}><${Name} text=${model.names[other]} /></a>
    <${State} state=${model.states[other]} phase=${model.phases[other]} /></li>`)}
    ${tasks.length > shown.length && html`<li><button type="button" class="quiet" onClick=${() => setAll(true)}>${all ? `${number(tasks.length - shown.length)} more` : `Show ${number(Math.min(500, tasks.length) - shown.length)} more`}</button></li>`}</ul>`;
}

const TIMES = /(_at|_until)$/;
const DUE = new Set(["due_at", "wait_until"]);

function Facts({ task }) {
  const told = {
    worker: task.worker_id, tool: task.tool, lifecycle: task.lifecycle, run: task.run, created_at: task.created_at, started_at: task.started_at, finished_at: task.finished_at,
    due_at: task.due_at, wait_until: task.wait_until, exit_code: task.exit_code, execution_ms: task.execution_ms, max_losses: task.max_losses, ...(task.facts ?? {}), id: task.id,
  };
  const shown = Object.entries(told).filter(([, value]) => value !== null && value !== undefined && value !== "");
  return html`<${Folded} title="Facts"><dl class="facts">
    ${shown.map(([word, value]) => html`<dt key=${word}>${spoken(word.replace(/_ms$/, ""))}</dt><dd>${fact(word, value)}</dd>`)}
  </dl><//>`;
}

function fact(word, value) {
  if (DUE.has(word)) return html`<${Due} at=${value} />`;
  if (TIMES.test(word) && typeof value === "number") return html`<${Time} at=${value} />`;
  if (word.endsWith("_ms")) return span(value / 1000);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value === "object") return html`<code>${safe(JSON.stringify(value))}</code>`;
  return html`<${Name} text=${String(value)} />`;
}
