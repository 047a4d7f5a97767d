// The durable steps of a task's body, the newest first: each with its state and a bar on one axis of time, and what came
// of it when it is opened.
//
// Rules:
// - A step that ends is no transition. So the list is read again by time while the task runs.
// - A step that runs now is not in the list: its start is not written, unless it has waited for its tool.

import { html, useMemo } from "../vendor/ui.js";
import { Actions } from "../actions.js";
import { Countdown, Due, Folded, Name, Shown, State, Time } from "../components.js";
import { now, useList } from "../store.js";
import { clock, counted, number, safe, span } from "../text.js";

const PAGE = 50;
const RECEIVE = "task.receive "; // how the names of steps that wait for a message begin
const VERSION = /^task\.version /; // steps that no run begins from
const EVERY = 2; // seconds
const WIDTH = 1000; // of the axis, in the units of a bar

/** task: its view; path: its own; live: whether its body runs; when: which transitions concern it. */
export function Steps({ task, path, live, when }) {
  const list = useList(`${path}/steps?newest_first=true&limit=${PAGE}`, { when, every: live ? EVERY : null });
  const steps = list.data.value ?? [];
  const waits = steps.some((one) => one.state === "waiting");
  const present = waits ? now.value : 0;
  const axis = useMemo(() => axisOf(steps, present), [steps, present]);
  if (!steps.length) return null;
  return html`<section class="steps" aria-label="Steps"><h3>Steps</h3>
    <ol>${steps.map((one) => html`<${Step} key=${one.label} ...${{ one, axis, present, task, path, live }} />`)}</ol>
    ${list.next.value !== null && html`<button type="button" class="quiet" onClick=${list.more}>Show earlier steps</button>`}
  </section>`;
}

function axisOf(steps, present) {
  const from = Math.min(...steps.map((one) => one.began_at));
  const to = Math.max(...steps.map((one) => one.ended_at ?? one.cancelled_at ?? Math.max(present, one.began_at)));
  return (at) => (to > from ? ((at - from) / (to - from)) * WIDTH : 0);
}

function Step({ one, axis, present, task, path, live }) {
  const message = one.state === "waiting" && one.name.startsWith(RECEIVE) ? one.name.slice(RECEIVE.length) : null;
  const again = !live && !VERSION.test(one.name) && (task.actions ?? []).includes("retry") && !(task.actions ?? []).includes("reset");
  const took = one.ended_at === null ? null : span((one.duration_ms ?? 0) / 1000);
  return html`<li>
    <p class="standing"><${State} state=${one.state} /> <code class="prose">${safe(one.label)}</code>
      ${took !== null && html`<span class="soft">took ${took}</span>`}
      ${one.tries > 1 && html`<span class="soft">${counted(one.tries, "try", "tries")}</span>`}
      ${one.state === "waiting" && one.due_at !== null && html`<span class="soft">until <${Due} at=${one.due_at} />, in <${Countdown} to=${one.due_at} /></span>`}</p>
    ${message !== null && html`<p class="prose">waits for the message <b><${Name} text=${message} /></b></p>
      <${Actions} of=${{ ...task, actions: ["send"] }} at=${path} body=${{ name: message }} />`}
    ${one.ended_at === null && one.tool_use && html`<p class="prose">${one.tool_use === "waits" ? "waits for" : "runs with"} the tool <b><${Name} text=${one.tool} /></b></p>`}
    ${one.ended_at === null && one.worker_use === "waits" && html`<p class="prose">waits for a worker of the engine <b>${one.engine}</b>${one.capabilities.length > 0 && ` with ${safe(one.capabilities.join(", "))}`}${one.unroutable && `: ${safe(one.unroutable)}`}</p>`}
    ${one.ended_at === null && one.worker_use === "holds" && html`<p class="prose">runs on the worker <b><${Name} text=${one.worker_id} /></b></p>`}
    <${Bar} ...${{ one, axis, present }} />
    ${again && html`<${Actions} of=${{ ...task, actions: ["retry"] }} at=${path} body=${{ from_step: one.label }} brief />`}
    ${one.error && html`<p class="prose">${safe(one.error.length > 500 ? `${one.error.slice(0, 500)} …` : one.error)}</p>`}
    <${Folded} title=${html`<span>What came of it<span class="unseen">: ${safe(one.label)}</span></span>`}><${Came} one=${one} /><//>
  </li>`;
}

function Bar({ one, axis, present }) {
  const from = axis(one.began_at);
  const wide = Math.max(axis(one.ended_at ?? one.cancelled_at ?? Math.max(present, one.began_at)) - from, 6);
  const x = Math.min(from, WIDTH - wide);
  const kind = one.state === "waiting" ? "waiting tone-wait" : `running tone-${one.state === "failed" ? "bad" : "good"}`;
  return html`<svg class="stepbar" viewBox=${`0 0 ${WIDTH} 8`} preserveAspectRatio="none" aria-hidden="true"><g class=${`stay stay-${kind}`}>
    <title>${`from ${clock(one.began_at)}${one.ended_at === null ? "" : ` to ${clock(one.ended_at)}`}`}</title>
    <rect x=${x} y="1" width=${wide} height="6" /></g></svg>`;
}

/** The arguments of a call: a list of those by position, or an object of those by name, or both. */
function argumentsOf([positional, named]) {
  if (!Object.keys(named).length) return positional;
  return positional.length ? [...positional, named] : named;
}

function Came({ one }) {
  return html`<dl class="facts">
      <dt>began</dt><dd><${Time} at=${one.began_at} /></dd>
      ${one.ended_at !== null && html`<dt>ended</dt><dd><${Time} at=${one.ended_at} /></dd>`}
      <dt>tries</dt><dd>${number(one.tries)}, in attempt ${number(one.attempt)}${one.worker_id ? html` on <${Name} text=${one.worker_id} />` : ""}</dd>
      <dt>function</dt><dd><code>${safe(one.function)}</code></dd>
      ${one.tool && html`<dt>tool</dt><dd><${Name} text=${one.tool} /></dd>`}
      ${one.error_type && html`<dt>error</dt><dd><code>${safe(one.error_type)}</code></dd>`}
    </dl>
    ${one.error && html`<pre tabindex="0" role="region" aria-label=${`Error of ${safe(one.label)}`}>${safe(one.error, { lines: true })}</pre>`}
    ${one.traceback && html`<pre tabindex="0" role="region" aria-label=${`Traceback of ${safe(one.label)}`}>${safe(one.traceback, { lines: true })}</pre>`}
    ${(one.arguments ?? null) !== null && html`<${Folded} title=${html`<span>Arguments<span class="unseen"> of ${safe(one.label)}</span></span>`}>
      <${Shown} value=${argumentsOf(one.arguments)} title=${`Arguments of ${safe(one.label)}`} /><//>`}
    ${(one.result ?? null) !== null && html`<${Shown} value=${one.result} title=${`Result of ${safe(one.label)}`} />`}`;
}
