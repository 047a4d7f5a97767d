// The page's data about the runtime, and their updates: one event stream, and resources that are read again after a
// transition that concerns them.
//
// How a view gets live data:
//
//     const job = useLive(`api/jobs/${segments(id)}`, { when: (event) => event.job_id === id });
//     job.data.value       the data of the last read, or undefined
//     job.problem.value    the Problem of the last read, or null; the data stay
//     job.busy.value       whether the first read has not ended
//     job.reload()         read the resource again now
//
//     const jobs = useList("api/jobs?limit=100", { when: ... });   // the same, data is all items of the pages so far
//     jobs.more()          read one page more; jobs.next.value is null if there is none
//
//     useEvents({ events(batch) {...}, reset() {...} }, [id]);     // every transition, in batches, in order of seq
//     useEvents({ progress(notice) {...} }, [id]);                 // what a running body has said of its progress
//     now.value            the server's time in UTC epoch seconds, once a second
//     link.value           {state: "live" | "opening" | "cut" | "asleep", heard, retryAt, why}
//
// `reset` means that transitions may have been missed (the server was away for long, or has another journal): drop data
// that were built from them. Resources are then read again automatically. Transitions may arrive twice, or late: a resource
// may be newer than they are. So put them in place by their numbers, and do not count them.
//
// Actions are in `actions.js`, components in `components.js`, the address in `router.js`.
//
// Rules:
// - The whole page has one stream, resumed by its Last-Event-ID. It is closed while the page is hidden for long: browsers
//   allow few connections to one server, and a hidden tab needs none.
// - A resource is never read twice at once, and at most during a `SHARE` of the time, so that a page costs a busy runtime no
//   more than an idle one.
// - A wait before a new try grows, is never longer than 15 s, and ends at once when the network is back.
// - A read that got no answer, or that the server could not do just then, is made again without a transition: none may come.

import { batch, signal, useEffect, useMemo, useRef } from "./vendor/ui.js";
import { ask, json, Problem, problemOf, refused, segments, serverTime, token } from "./net.js";
import { sseParser } from "./sse.js";

export { segments };

const GAP = 400; // the shortest time between two reads of one resource, in ms
const SHARE = 1 / 5; // the largest part of the time during which a resource is being read
const LONGEST = 10_000; // the longest pause between two reads that SHARE demands, in ms
const PATIENCE = 30_000; // ms after which a request without an answer is given up, and made again
const FLUSH = 100; // ms that transitions are collected before listeners get them
const SILENCE = 45_000; // ms without any data, also no heartbeat, after which a connection counts as dead
const ASLEEP = 60_000; // ms that a page is hidden before its stream is closed
const RESUMES = 3600; // s of interruption after which everything is read again, and the missed transitions are not
const WAITS = [500, 1000, 2000, 4000, 8000, 15_000];

// ----------------------------------------------------------------------------------------------------------- time

/** The server's time, updated once a second: a component that reads its value is drawn again then. */
export const now = signal(serverTime());
setInterval(() => {
  now.value = serverTime();
}, 1000);

// ------------------------------------------------------------------------------------------------------ the stream

/** The state of the connection. heard: the time of the last data; retryAt: the time of the next try (epoch seconds). */
export const link = signal({ state: "opening", heard: null, retryAt: null, why: null });

const listeners = new Set();
const resources = new Set();
let lastId = null; // all transitions up to this number were delivered
let lastSeen = null; // the last transition that arrived
let pending = [];
let flushing = null;
let attempt = 0;
let stop = null; // ends the connection, or the wait for the next try
let sleepTimer = null;

const tell = (changes) => {
  link.value = { ...link.peek(), ...changes };
};

function flush() {
  flushing = null;
  const told = pending;
  pending = [];
  batch(() => {
    for (const listener of listeners) listener.events?.(told);
    for (const resource of resources) if (told.some(resource.concerns)) resource.stale();
  });
}

function take(message) {
  if (message.event === "transition") {
    lastSeen = JSON.parse(message.data);
    pending.push(lastSeen);
    flushing ??= setTimeout(flush, FLUSH);
  } else if (message.event === "notice") {
    const notice = JSON.parse(message.data);
    if (notice.event === "progress") for (const listener of listeners) listener.progress?.(notice);
  } else if (message.event === "gap") {
    const { count, notices } = JSON.parse(message.data);
    if (count || !notices) reset();
  } else if (message.event === "closing") {
    throw new Problem(0, { detail: JSON.parse(message.data).text });
  }
}

/** Keep the number up to which all was delivered. A smaller one than before belongs to another journal. */
function reached(id) {
  if (id === null) return;
  const back = lastId !== null && Number(id) < Number(lastId);
  lastId = id;
  if (back) reset();
}

function reset() {
  pending = [];
  lastSeen = null;
  for (const listener of listeners) listener.reset?.();
  refresh();
}

/** Read everything that is shown again. */
export function refresh() {
  for (const resource of resources) resource.refresh();
}

/** Whether the server's journal holds the last transition: in another journal, its number has another meaning. */
async function resumable(stopping) {
  if (lastSeen === null || serverTime() - link.peek().heard > RESUMES) return false;
  const { seq, at, entity_id: entity } = lastSeen;
  const path = `api/transitions?after=${seq - 1}&limit=1`;
  const response = await ask("GET", path, { signal: stopping });
  const [found] = response.ok ? (await response.json()).items : [];
  return found?.seq === seq && found.at === at && found.entity_id === entity;
}

async function connect(stopped) {
  const abort = new AbortController();
  stopped.then(() => abort.abort());
  const late = setTimeout(() => abort.abort(), PATIENCE);
  let response;
  let resumed;
  try {
    if (lastId !== null && !(await resumable(abort.signal))) lastId = null;
    resumed = lastId !== null;
    response = await ask("GET", "api/events", {
      headers: { Accept: "text/event-stream", ...(resumed ? { "Last-Event-ID": lastId } : {}) },
      signal: abort.signal,
    });
    if (!response.ok) throw await problemOf(response);
  } finally {
    clearTimeout(late);
  }
  await read(response.body.getReader(), abort, resumed);
}

async function read(reader, abort, resumed) {
  attempt = 0;
  tell({ state: "live", heard: serverTime(), retryAt: null, why: null });
  if (resumed) refresh();
  else reset(); // the stream begins here: resources that were read earlier are read again
  const parser = sseParser();
  const decoder = new TextDecoder();
  let watchdog;
  const watch = () => {
    clearTimeout(watchdog);
    watchdog = setTimeout(() => abort.abort(new Problem(0, { detail: "the server fell silent" })), SILENCE);
  };
  try {
    for (watch(); ; watch()) {
      const { done, value } = await reader.read();
      if (done) throw new Problem(0, { detail: "the server ended the connection" });
      if (serverTime() - link.peek().heard >= 1) tell({ heard: serverTime() });
      const messages = parser.feed(decoder.decode(value, { stream: true }));
      reached(parser.id);
      messages.forEach(take);
    }
  } finally {
    clearTimeout(watchdog);
  }
}

/** Keep a stream open as long as the page exists. */
async function keep() {
  for (;;) {
    let end;
    const stopped = new Promise((resolve) => {
      end = resolve;
    });
    stop = end;
    let problem = null;
    try {
      await connect(stopped);
    } catch (error) {
      problem = error instanceof Problem ? error : new Problem(0, {});
    }
    if (link.peek().state === "asleep") await stirred();
    else if (refused.peek()) await allowed(problem);
    else await waited(problem);
  }
}

/** How many ms to wait after so many failures in a row, the last of which was this problem. */
function pauseBefore(failures, problem) {
  const growing = WAITS[Math.min(failures, WAITS.length) - 1];
  return Math.max(growing, (problem.retryAfter ?? 0) * 1000) * (0.75 + Math.random() / 2);
}

async function waited(problem) {
  attempt += 1;
  const wait = pauseBefore(attempt, problem);
  tell({ state: "cut", retryAt: serverTime() + wait / 1000, why: problem.message });
  await until((go) => {
    const timer = setTimeout(go, wait);
    return () => clearTimeout(timer);
  });
  if (link.peek().state !== "asleep") tell({ state: "opening", retryAt: null });
}

async function allowed(problem) {
  tell({ state: "cut", retryAt: null, why: problem.message });
  await until((go) => refused.subscribe((why) => why === null && go()));
}

const stirred = () => until((go) => link.subscribe(({ state }) => state !== "asleep" && go()));

/** Wait until `begin` calls its argument, or until the wait is stopped. */
function until(begin) {
  return new Promise((resolve) => {
    let end = null;
    let gone = false;
    const go = () => {
      gone = true;
      end?.();
      resolve();
    };
    stop = go;
    end = begin(go);
    if (gone) end();
  });
}

/** Try again now, without waiting for the next try. */
export function reconnect() {
  if (link.peek().state !== "cut") return;
  attempt = 0;
  stop?.();
}

/** Open the stream, and keep it open. Once per page. */
export function start() {
  addEventListener("online", reconnect);
  addEventListener("offline", () => link.peek().state === "live" && stop?.());
  document.addEventListener("visibilitychange", () => {
    clearTimeout(sleepTimer);
    if (document.hidden) {
      sleepTimer = setTimeout(() => {
        tell({ state: "asleep" });
        stop?.();
      }, ASLEEP);
    } else if (link.peek().state === "asleep") {
      tell({ state: "opening" });
    } else if (link.peek().state === "cut") {
      reconnect();
    }
  });
  token.subscribe(() => refresh());
  void keep();
}

/** Deliver every transition to {events(batch), reset()}, and reports of progress to {progress(notice)}, while the component exists. */
export function useEvents(listener, inputs = []) {
  const latest = useRef(listener);
  latest.current = listener;
  useEffect(() => {
    const heard = { events: (told) => latest.current.events?.(told), reset: () => latest.current.reset?.(), progress: (notice) => latest.current.progress?.(notice) };
    listeners.add(heard);
    return () => listeners.delete(heard);
  }, inputs);
}

// -------------------------------------------------------------------------------------------------------- resources

/** A resource, read by `load(signal)` repeatedly. `when(event)`: whether a transition concerns it. */
function resource(load, when = () => true) {
  const data = signal(undefined);
  const problem = signal(null);
  const busy = signal(true);
  let abort = new AbortController(); // of the present read
  let closed = false;
  let reading = false;
  let wanted = false;
  let timer = null;
  let next = -Infinity; // the earliest time of the next read that nobody demands
  let failures = 0; // reads without an answer, one after the other

  async function reload() {
    clearTimeout(timer);
    timer = null;
    if (reading || closed) {
      wanted = true;
      return;
    }
    reading = true;
    wanted = false;
    abort = new AbortController();
    const late = setTimeout(() => abort.abort(), PATIENCE);
    const began = performance.now();
    try {
      const value = await load(abort.signal);
      batch(() => {
        data.value = value;
        problem.value = null;
      });
    } catch (error) {
      if (closed) return;
      problem.value = error instanceof Problem ? error : new Problem(0, {});
    } finally {
      clearTimeout(late);
      reading = false;
      const ended = performance.now();
      next = ended + Math.min(LONGEST, Math.max(GAP, (ended - began) * (1 / SHARE - 1)));
      busy.value = false;
    }
    failures = problem.peek()?.unanswered ? failures + 1 : 0;
    if (failures) next = performance.now() + pauseBefore(failures, problem.peek());
    if (wanted || failures) stale();
  }

  /** Mark the resource as outdated: it is read again soon. */
  function stale() {
    if (reading) wanted = true;
    else timer ??= setTimeout(reload, Math.max(0, next - performance.now()));
  }

  /** The same, and a pause after a failure ends: the server can be reached again. */
  function refresh() {
    if (failures) {
      clearTimeout(timer);
      timer = null;
      next = -Infinity;
    }
    stale();
  }

  const made = {
    data, problem, busy, reload, stale, refresh, concerns: when,
    open() {
      resources.add(made);
      void reload();
    },
    close() {
      closed = true;
      resources.delete(made);
      clearTimeout(timer);
      abort.abort();
    },
  };
  return made;
}

function useResource(make, inputs) {
  const before = useRef(null);
  const made = useMemo(() => make(before.current), inputs);
  before.current = made;
  useEffect(() => {
    made?.open();
    return () => made?.close();
  }, [made]);
  return made;
}

/**
 * A resource of the API, kept up to date while the component exists. With the path null, null is returned.
 * every: seconds after which it is read again, also without a transition.
 */
export function useLive(path, { when, every = null } = {}) {
  const made = useResource(() => path === null ? null : resource((stopping) => json("GET", path, { signal: stopping }), when), [path]);
  useAgain(made, every);
  return made;
}

function useAgain(made, every) {
  useEffect(() => {
    if (every === null || made === null) return undefined;
    const timer = setInterval(() => link.peek().state === "live" && made.stale(), every * 1000);
    return () => clearInterval(timer);
  }, [made, every]);
}

const left = new Map(); // by path: the content of a list when its view was left, shown at once when a reader returns
const LEFT = 8;

function leave(path, had) {
  left.delete(path);
  left.set(path, had);
  if (left.size > LEFT) left.delete(left.keys().next().value);
}

/**
 * A list of the API, kept up to date; `more()` reads one page more. Its data are the items of the pages that were read.
 * While a new path is read for the first time, the data are those of the path before, and `busy` is true.
 */
export function useList(path, { when, every = null } = {}) {
  const list = useResource((before) => {
    const had = left.get(path);
    const next = signal(had?.next ?? null);
    let pages = had?.pages ?? 1;
    let asked = false; // whether one page more was requested
    const page = async (cursor, stopping) => {
      const query = cursor === null ? "" : `${path.includes("?") ? "&" : "?"}cursor=${encodeURIComponent(cursor)}`;
      return json("GET", path + query, { signal: stopping });
    };
    const made = resource(async (stopping) => {
      const further = asked && next.peek() !== null;
      asked = false;
      const items = further ? [...made.data.peek()] : [];
      let cursor = further ? next.peek() : null;
      for (let count = further ? pages : 0; count < pages + (further ? 1 : 0); count++) {
        const got = await page(cursor, stopping);
        items.push(...got.items);
        cursor = got.next ?? null;
        if (cursor === null) break;
      }
      if (further) pages += 1;
      next.value = cursor;
      leave(path, { items, next: cursor, pages });
      return items;
    }, when);
    made.data.value = had?.items ?? before?.data.peek();
    made.next = next;
    made.more = () => {
      if (next.peek() === null || asked) return;
      asked = true;
      void made.reload();
    };
    return made;
  }, [path]);
  useAgain(list, every);
  return list;
}

