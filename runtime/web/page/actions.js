// Actions: one dialog for every verb, which explains the verb, asks for a reason, and shows the result.
//
//     act({ verb: "approve", of: task, at: `api/jobs/${segments(job, "tasks", task)}`, body: {...} })   opens the dialog
//     html`<${Actions} of=${task} at=${path} body=${...} />`      a button for each verb that is allowed now (`of.actions`)
//     html`<${ActionDialog} />`, html`<${Outcomes} />`            once each, in the shell
//     announce("...")                                             for screen readers only
//
// `of` is a view of the API: {kind, id, name, state, actions}. Results are shown below the page, and a screen reader says
// them. `refused` holds the verbs that this person may not use, each with the reason: {approve: "you submitted it"}.
//
// Rules:
// - One idempotency key per dialog: after a second press, or a repeat without an answer, the command runs once. The request
//   cannot be changed between such tries. A refused request did nothing, so the next press has a new key.
// - A conflict is shown in words, with a button for each action that is possible now.
// - Actions that this person's scopes do not allow are not offered; the page says so where there is room.
// - The focus goes back to where it was.

import { html, signal, useEffect, useLayoutEffect, useRef, useState } from "./vendor/ui.js";
import { Due, Icon, Name, State, Trouble } from "./components.js";
import { may, me, whyNot } from "./me.js";
import { freshKey, json, Problem, storage, token } from "./net.js";
import { now as clockNow, refresh } from "./store.js";
import { listed, safe, spoken, timed } from "./text.js";

const number = (name, label, hint) => ({ name, label, hint, type: "number" });
const FORCE = { name: "force", label: "By force", hint: "Stops running attempts at once; the clean-up does not run.", type: "checkbox" };

/** The verbs: the button's label, its effect in words (by kind, or for all kinds), the result in words, its weight. */
export const VERBS = {
  approve: { label: "Approve", does: "Counts as your approval. It continues when no further approval is missing.", done: "approved", weight: "main" },
  reject: { label: "Reject", does: "One rejection is enough: it cancels the held task or run.", done: "rejected", weight: "danger" },
  resume: {
    label: "Resume", done: "resumed", weight: "main",
    does: { job: "Continues where it stopped; completed tasks stay completed.", worker: "It takes new attempts again." },
  },
  retry: {
    label: "Retry", done: "will run again", weight: "main",
    does: { job: "Runs it again; completed tasks stay completed.", task: "Runs it again, with the tasks that depend on it." },
  },
  start: { label: "Start", does: "Starts the worker again, under the same name.", done: "started", weight: "main" },
  reset: {
    label: "Reset", done: "reset", weight: "main",
    does: { breaker: "Closes it: attempts start again, and its failures are counted from 0.", task: "It no longer waits for its breaker." },
  },
  pause: {
    label: "Pause", done: "paused", weight: "",
    does: { job: "No new task starts; running tasks go on to their end.", worker: "It takes no new attempts; its running attempts go on." },
  },
  skip: { label: "Skip", does: "It does not run, and counts as completed for tasks that depend on it.", done: "skipped", weight: "" },
  trip: {
    label: "Trip", does: "Opens it: no attempt uses this tool until it cools down or is reset.", done: "tripped", weight: "danger",
    fields: [number("cooldown", "Cooldown in seconds", "Leave it empty for the tool's own.")],
  },
  shut_down: {
    label: "Shut down", does: "It takes no new attempts, and stops when its running attempts have ended.", done: "is shutting down", weight: "danger",
    fields: [number("deadline", "Deadline in seconds", "Attempts that still run then are stopped. Leave it empty for the default.")],
  },
  cancel: {
    label: "Cancel", done: "is being cancelled", weight: "danger", fields: [FORCE],
    does: { job: "Stops its tasks, and runs their clean-up.", task: "Stops it, and runs its clean-up." },
  },
  send: {
    label: "Send message", does: "Its body waits for this message, and goes on with its value.", done: "was sent a message", weight: "main",
    fields: [{ name: "value", label: "Value", hint: "JSON; anything else is sent as text. Leave it empty for null.", type: "value" }], reason: false,
  },
  fire: { label: "Fire", does: "Takes the transition of this event; refused if no guard passes.", done: "has moved", weight: "" },
  terminate: { label: "Terminate", does: "Stops it at once: its attempts are lost, and run again on other workers.", done: "terminated", weight: "danger" },
};
const FROM_STEP = "Runs this step and those after it again, with the tasks that depend on the task. The steps before it are kept.";
const ORDER = Object.keys(VERBS);
/** The verb for an entity that is being cancelled already. */
const FORCED = { label: "Cancel by force", does: FORCE.hint, done: "is cancelled by force", weight: "danger" };

const forces = (verb, of) => verb === "cancel" && !(of.actions ?? ["cancel"]).includes("cancel");
const wordsOf = (verb, of) => forces(verb, of) ? FORCED : VERBS[verb];

const open = signal(null); // the dialog's verb and target
const outcomes = signal([]); // the results of the last actions, the newest first
/** The text for a screen reader. */
export const said = signal("");

/** Have a screen reader say something. */
export function announce(text) {
  said.value = "";
  setTimeout(() => {
    said.value = text;
  }, 50); // an equal text must be said again
}

/** Open the dialog for a verb. */
export function act({ verb, of, at, body = {} }) {
  open.value = { verb, of, at, body, from: document.activeElement, turn: (open.peek()?.turn ?? 0) + 1 };
}

/** The verbs of an entity that the page knows, in the order of their buttons. */
export const verbsOf = (thing) => known(buttonsOf(thing, thing.actions ?? []));

/** A run has no button for skip: its tasks have it. */
const buttonsOf = (thing, words) => thing.kind === "job" ? words.filter((word) => word !== "skip") : words;

/** The known verbs among these words, in order; an entity that is being cancelled can only be cancelled by force. */
const known = (words) => ORDER.filter((verb) => words.includes(verb) || (verb === "cancel" && words.includes("cancel_force")));

export function Actions({ of, at, body = {}, only = null, refused = {}, brief = false }) {
  const all = verbsOf(of).filter((verb) => verb !== "fire" && (only === null || only.includes(verb)));
  const why = (verb) => may(verb) ? refused[verb] : whyNot(verb);
  const verbs = all.filter((verb) => !why(verb));
  const others = brief ? [] : all.filter(why);
  if (!verbs.length && !others.length) return null;
  return html`
    ${verbs.length > 0 && html`<div class="actions" role="group" aria-label=${`Actions on ${safe(of.name || of.id)}`}>
      ${verbs.map((verb) => html`<button key=${verb} type="button" class=${VERBS[verb].weight} onClick=${() => act({ verb, of, at, body })}>
        ${wordsOf(verb, of).label}${body.from_step && " from here"}<span class="unseen"> ${safe(body.from_step || of.name || of.id)}</span>
      </button>`)}
    </div>`}
    ${[...new Set(others.map(why))].map((reason) => html`<p key=${reason} class="soft notyours">
      Not for you: ${listed(others.filter((verb) => why(verb) === reason).map((verb) => wordsOf(verb, of).label))}. ${safe(reason)}</p>`)}`;
}

const NAME = "callboard name";
const remembered = () => storage("localStorage")?.getItem(NAME) ?? "";

export function ActionDialog() {
  const asked = open.value;
  return asked && html`<${Asking} key=${asked.turn} ...${asked} />`;
}

function Asking({ verb, of, at, body, from }) {
  const box = useRef(null);
  const key = useRef(freshKey());
  const [step, setStep] = useState({ name: "asking", problem: null });
  const { label: word, does, fields = [], weight, done, reason = true } = wordsOf(verb, of);
  const from_ = verb === "retry" && body.from_step;
  const label = from_ ? `${word} from ${safe(from_)} on:` : body.event ? `${word} ${spoken(body.event)} at` : verb === "send" ? `${word} ${safe(body.name)} to` : word;
  const sending = step.name === "sending";
  const locked = sending || step.name === "unanswered";

  useLayoutEffect(() => {
    box.current.showModal();
  }, []);
  const close = () => {
    box.current?.close();
    open.value = null;
    if (from?.isConnected) from.focus();
    else document.querySelector("h1")?.focus();
  };

  async function submit(event) {
    event.preventDefault();
    if (sending) return;
    const form = new FormData(box.current.querySelector("form"));
    const wanted = { ...body, ...(forces(verb, of) ? { force: true } : {}), ...asBody(form, fields) };
    if (form.get("by")) storage("localStorage")?.setItem(NAME, form.get("by"));
    setStep({ name: "sending", problem: null, wanted: step.wanted });
    const sent = step.wanted ?? wanted;
    try {
      const answer = await json("POST", `${at}/${verb}`, { body: sent, key: key.current });
      told({ verb, done, of, answer, at: Date.now() });
      refresh();
      close();
    } catch (error) {
      const problem = error instanceof Problem ? error : new Problem(0, { detail: String(error) });
      const unsure = problem.unanswered || problem.kind === "in-flight" || problem.status === 401;
      if (!unsure) key.current = freshKey();
      setStep({ name: unsure ? "unanswered" : "refused", problem, wanted: unsure ? sent : undefined });
      if (problem.status === 409) refresh();
    }
  }

  return html`<dialog ref=${box} class="ask" aria-labelledby="ask-title" onCancel=${(event) => { event.preventDefault(); close(); }}>
    <form onSubmit=${submit}>
      <h2 id="ask-title">${label} <${Name} text=${of.name || of.id} /></h2>
      <p class="about"><span>${spoken(of.kind)}</span> <code><bdi>${safe(of.id)}</bdi></code> <${State} ...${standing({ ...of, workstream: of.workstream_state })} /></p>
      <p>${from_ ? FROM_STEP : typeof does === "string" ? does : does[of.kind]}</p>
      ${!token.value && !me.value?.name && html`<label class="field">
        <span>Your name</span>
        <input name="by" autocomplete="username" maxlength="200" defaultValue=${remembered()} readonly=${locked} placeholder="operator" />
      </label>`}
      ${fields.map((field) => html`<${Field} key=${field.name} ...${field} locked=${locked} />`)}
      ${reason && html`<label class="field">
        <span>Reason</span>
        <textarea name="reason" rows="2" maxlength="2000" readonly=${locked} autofocus aria-describedby="ask-hint"></textarea>
        <small id="ask-hint">Kept in the record of transitions, for those who come after.</small>
      </label>`}
      <div class="came" role="status">
        ${step.problem && html`<${Refused} problem=${step.problem} of=${of} at=${at} body=${body} from=${from} />`}
      </div>
      <div class="buttons">
        <button type="button" onClick=${close}>${step.name === "refused" ? "Close" : "Back"}</button>
        <button type="submit" class=${weight || "main"} aria-disabled=${sending}>
          ${sending ? "Asking …" : step.name === "unanswered" ? "Try again" : word}
        </button>
      </div>
    </form>
  </dialog>`;
}

function Field({ name, label, hint, type, locked }) {
  const hinted = `hint-${name}`;
  if (type === "checkbox") {
    return html`<label class="field check">
      <input type="checkbox" name=${name} aria-describedby=${hinted} disabled=${locked} /><span>${label}</span><small id=${hinted}>${hint}</small>
    </label>`;
  }
  if (type === "value") {
    return html`<label class="field">
      <span>${label}</span>
      <textarea name=${name} rows="4" readonly=${locked} autofocus aria-describedby=${hinted}></textarea>
      <small id=${hinted}>${hint}</small>
    </label>`;
  }
  return html`<label class="field">
    <span>${label}</span>
    <input type="number" name=${name} min="0" step="any" inputmode="decimal" readonly=${locked} aria-describedby=${hinted} />
    <small id=${hinted}>${hint}</small>
  </label>`;
}

/** The value of a message: JSON, or else text. */
function valueOf(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

function asBody(form, fields) {
  const made = {};
  for (const name of ["reason", "by"]) if (form.get(name)?.trim()) made[name] = form.get(name).trim();
  for (const { name, type } of fields) {
    const value = form.get(name);
    if (type === "value") {
      if (value.trim()) made[name] = valueOf(value);
    } else if (type === "checkbox" ? value : value?.trim()) made[name] = type === "checkbox" ? true : Number(value);
  }
  return made;
}

/** The server's refusal. For a conflict: the entity's present state, and its possible actions. */
function Refused({ problem, of, at, body, from }) {
  const { state, allowed, commands, decision, expired_at: expired } = problem.said;
  if (problem.status === 409 && state) {
    const now = of.kind === "machine"
      ? (may("fire") ? (allowed ?? []).filter((event) => event !== problem.said.event) : []).map((event) => ({ verb: "fire", body: { event }, label: spoken(event) }))
      : known(buttonsOf(of, commands ?? allowed ?? [])).filter(may).map((verb) => ({ verb, body, label: wordsOf(verb, { actions: commands ?? allowed }).label }));
    return html`<div class="trouble conflict">
      <${Icon} name="question" />
      <div>
        <p><strong>${state === of.phase || state === of.state ? "Refused: it is" : "It has moved on: it is now"}</strong> <${State} state=${state} /></p>
        <p class="prose">${timed(safe(problem.said.detail), clockNow.value)}</p>
        ${decision && html`<p class="soft">Decided <${Due} at=${decision.at} /></p>`}
        ${expired && html`<p class="soft">Expired <${Due} at=${expired} /></p>`}
        ${now.length
          ? html`<p>Possible now:</p>
              <div class="actions">${now.map((one) => html`<button key=${one.label} type="button"
                onClick=${() => { act({ verb: one.verb, of: { ...of, state, phase: state, actions: commands ?? allowed }, at, body: one.body }); open.value = { ...open.peek(), from }; }}>
                ${one.label}</button>`)}</div>`
          : html`<p>No action of this page is possible now.</p>`}
      </div>
    </div>`;
  }
  if (problem.status === 0) {
    return html`<div class="trouble">
      <${Icon} name="question" />
      <p><strong>No answer came.</strong> It may have been done. Trying again sends the same request, and it is not done twice.</p>
    </div>`;
  }
  return html`<${Trouble} problem=${problem} />`;
}

/** The state in an answer: a run is paused or held if its workstream is. */
const standing = ({ state, phase = state, workstream }) =>
  phase === "running" && workstream ? { state: workstream, phase: workstream } : { state, phase };

function told(outcome) {
  outcomes.value = [outcome, ...outcomes.peek()].slice(0, 3);
  const { of, done, answer } = outcome;
  announce(`${safe(of.name || of.id)} ${done}. It is now ${spoken(standing(answer).state)}.`);
}

const LASTS = 12_000; // ms that an outcome is shown, unless the pointer or the focus is on it

/** The results of the last actions. */
export function Outcomes() {
  const list = useRef(null);
  const shown = outcomes.value;
  useEffect(() => {
    if (!shown.length) return undefined;
    const timer = setInterval(() => {
      if (list.current?.matches(":hover, :focus-within")) return;
      const left = outcomes.peek().filter(({ at }) => Date.now() - at < LASTS);
      if (left.length !== outcomes.peek().length) outcomes.value = left;
    }, 1000);
    return () => clearInterval(timer);
  }, [shown.length]);
  if (!shown.length) return null;
  return html`<section aria-label="Results"><ul class="outcomes" ref=${list}>
    ${shown.map((one) => html`<li key=${one.at}>
      <span><strong><${Name} text=${one.of.name || one.of.id} /></strong> ${one.done}
        ${one.answer.state && html`<span class="now">; now <${State} ...${standing(one.answer)} /></span>`}</span>
      <button type="button" class="quiet icononly" aria-label="Dismiss" onClick=${() => { outcomes.value = outcomes.peek().filter((other) => other !== one); }}>
        <${Icon} name="close" /></button>
    </li>`)}
  </ul></section>`;
}

