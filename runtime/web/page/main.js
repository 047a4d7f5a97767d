// The shell: the frame around every view, and the choice of the view.
//
// A view is a module under views/ whose `View({parts, query})` is shown at the addresses in `VIEWS`. It is loaded when
// it is shown for the first time, so that the first page waits for one view only.

import { html, render, useEffect, useLayoutEffect, useRef, useState } from "./vendor/ui.js";
import { ActionDialog, announce, Outcomes, said } from "./actions.js";
import { Icon, Page, Trouble } from "./components.js";
import { me, Mine } from "./me.js";
import { Problem, refused, token, useToken } from "./net.js";
import { href, route } from "./router.js";
import { link, now, reconnect, start, useList, useLive } from "./store.js";
import { moment, safe, ticking } from "./text.js";

const VIEWS = {
  runs: [() => import("./views/runs.js"), (parts) => parts.length === 1],
  run: [() => import("./views/run.js"), (parts) => parts[0] === "runs" && parts.length === 2],
  approvals: [() => import("./views/approvals.js"), (parts) => parts.length === 1],
  workers: [() => import("./views/workers.js"), (parts) => parts.length === 1],
  breakers: [() => import("./views/breakers.js"), (parts) => parts.length === 1],
  machines: [() => import("./views/machines.js"), (parts) => parts.length <= 2],
};
const PLACES = [["runs", "Runs", "runs"], ["approvals", "Approvals", "person"], ["workers", "Workers", "worker"], ["breakers", "Breakers", "bolt"]];
const MACHINES = ["machines", "Machines", "gear"]; // shown only if there are machines

function viewAt(parts) {
  if (!parts.length) return "runs";
  if (parts[0] === "runs" && parts.length === 2) return "run";
  return Object.hasOwn(VIEWS, parts[0]) && VIEWS[parts[0]][1](parts) ? parts[0] : null;
}

// --------------------------------------------------------------------------------------------------------- the view

const loaded = new Map();

function Viewed() {
  const { parts, query } = route.value;
  const name = viewAt(parts);
  const [, drawn] = useState(0);
  useEffect(() => {
    if (name === null || loaded.get(name)?.View) return;
    VIEWS[name][0]().then((module) => loaded.set(name, module), () => loaded.set(name, { failed: true }))
      .then(() => drawn((count) => count + 1));
  }, [name]);
  if (name === null) {
    return html`<${Page} title="Page not found"><p>There is no page at this address. <a href=${href(["runs"])}>See the runs</a>.</p><//>`;
  }
  const module = loaded.get(name);
  if (module?.View) return html`<${module.View} key=${parts.join("/")} parts=${parts} query=${query} />`;
  if (!module) return html`<p class="loading" role="status">Opening …</p>`;
  return html`<${Page} title="The page could not be opened">
    <${Trouble} problem=${new Problem(0, { title: "This part of the page did not load" })} again=${() => location.reload()} />
  <//>`;
}

// -------------------------------------------------------------------------------------------------------- the shell

function Link() {
  const { state } = link.value;
  const told = { live: ["Live", "good"], opening: ["Connecting", "idle"], cut: ["Cut off", "bad"], asleep: ["Asleep", "idle"] };
  const [word, kind] = refused.value ? ["Locked", "idle"] : told[state];
  return html`<span class=${`link tone-${kind}`}><span class=${`dot ${state}`}></span>${word}</span>`;
}

/** Shows that the page's data may be old, and since when. Short interruptions are not shown. */
function Stale() {
  const { state, heard, retryAt, why } = link.value;
  const away = state !== "live" && state !== "asleep" && (state === "cut" || heard !== null);
  const was = useRef(false);
  useEffect(() => {
    if (away && !was.current) announce(heard === null ? "The server cannot be reached." : "Cut off from the server. What is shown may be old.");
    if (!away && was.current) announce("Connected again. What is shown is up to date.");
    was.current = away;
  }, [away]);
  if (!away || refused.value) return null;
  const left = retryAt === null ? 0 : retryAt - now.value;
  return html`<div class="stale">
    <${Icon} name="question" />
    <p><strong>${heard === null ? "The server cannot be reached" : html`Stale since <span class="num">${moment(heard, now.value)}</span>`}.</strong>
      ${" "}<span class="why">${safe(why ?? "")}${why ? "." : ""}</span>
      ${" "}<span class="num">${left > 0 ? `Trying again in ${ticking(left)}.` : "Trying …"}</span></p>
    <button type="button" onClick=${reconnect}>Try now</button>
  </div>`;
}

/** Shows that the runtime is degraded, and why. */
function Degraded() {
  const health = useLive("api/health", { every: 10, when: () => false });
  const told = health.data.value;
  if (!told || told.status === "ok") return null;
  return html`<div class="stale degraded" role="status">
    <${Icon} name="bolt" />
    <p><strong>Degraded${told.since ? html` since <span class="num">${moment(told.since, now.value)}</span>` : ""}.</strong> <span class="prose">${safe(told.reason)}</span></p>
  </div>`;
}

function TokenDialog() {
  const box = useRef(null);
  const why = refused.value;
  useLayoutEffect(() => {
    if (why && !box.current.open) box.current.showModal();
    if (!why && box.current.open) box.current.close();
  }, [why]);
  const submit = (event) => {
    event.preventDefault();
    const secret = new FormData(event.target).get("token").trim();
    if (secret) useToken(secret);
  };
  return html`<dialog ref=${box} class="ask" aria-labelledby="token-title" onCancel=${(event) => event.preventDefault()}>
    <form onSubmit=${submit}>
      <h2 id="token-title">Token needed</h2>
      <p>This board needs a token. The page keeps it for this tab only, and sends it to this server only.</p>
      <input class="unseen" name="name" type="text" autocomplete="username" value="token" readonly tabindex="-1" aria-hidden="true" />
      <label class="field"><span>Token</span>
        <input name="token" type="password" required autocomplete="current-password" autofocus aria-describedby="token-why" />
        <small id="token-why" role="alert" class="tone-bad">${why === "wrong" ? "The server does not know this token." : ""}</small>
      </label>
      <div class="buttons"><button type="submit" class="main">Go on</button></div>
    </form>
  </dialog>`;
}

function Waiting() {
  const approvals = useList("api/approvals?limit=100", { when: (event) => event.event !== "start" && event.event !== "succeed" });
  const items = (approvals.data.value ?? []).filter(({ yours }) => yours !== false);
  if (!items.length) return null;
  const count = approvals.next.value === null ? `${items.length}` : `${items.length}+`;
  return html`<span class="count num"><span aria-hidden="true">${count}</span><span class="unseen">, ${count} waiting${me.value?.name ? " for you" : ""}</span></span>`;
}

function Shell() {
  const place = route.value.parts[0] ?? "runs";
  const main = useRef(null);
  const any = useRef(false);
  const machines = useLive("api/machines?limit=1", { when: ({ kind }) => kind === "machine" && !any.current });
  any.current = machines.data.value?.items.length > 0;
  const places = any.current || place === "machines" ? [...PLACES, MACHINES] : PLACES;
  const skip = (event) => {
    event.preventDefault(); // the router uses the part after "#"
    main.current.focus();
  };
  return html`
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="top">
      <a class="brand" href=${href(["runs"])}><svg viewBox="0 0 32 32" aria-hidden="true"><rect width="32" height="32" rx="7" /><path d="M7 9h18M7 16h11M7 23h14" /></svg>Callboard</a>
      <nav aria-label="Places">
        ${places.map(([part, word, icon]) => html`<a key=${part} href=${href([part])} aria-current=${place === part ? "page" : null}>
          <${Icon} name=${icon} /><span>${word}</span>${part === "approvals" && html`<${Waiting} />`}</a>`)}
      </nav>
      <div class="corner">
        <${Mine} />
        <${Link} />
        ${token.value && html`<button type="button" class="quiet" onClick=${() => { useToken(null); location.reload(); }}>Leave</button>`}
      </div>
    </header>
    <${Stale} />
    <${Degraded} />
    <main id="main" ref=${main} tabindex="-1"><${Viewed} /></main>
    <${Outcomes} />
    <${ActionDialog} />
    <${TokenDialog} />
    <div class="unseen" role="status" aria-live="polite">${said.value}</div>
  `;
}

/** Move the focus to the heading, and not to the top of the page, when the focused element was removed. */
function keepFocus(board) {
  let held = null;
  addEventListener("focusin", ({ target }) => {
    held = target;
  });
  addEventListener("pointerdown", () => {
    held = null;
  });
  new MutationObserver(() => {
    if (held === null || held.isConnected || document.activeElement !== document.body) return;
    held = null;
    document.querySelector("h1")?.focus({ preventScroll: true });
  }).observe(board, { childList: true, subtree: true });
}

start();
const board = document.getElementById("board");
board.replaceChildren();
keepFocus(board);
render(html`<${Shell} />`, board);
