// Requests to the API of this board, and their problems in words.
//
// Rules:
// - Addresses are relative to the page's own: a board may be mounted under any prefix.
// - A token is asked for when the server wants one, and kept for this tab only.
// - Every failure is a Problem: what the server said (problem+json), or that no answer came (`unanswered`): then nobody
//   knows whether it was done.

import { signal } from "./vendor/ui.js";

const BASE = new URL("./", location.href.replace(/[?#].*$/, ""));
const KEPT = `callboard token ${BASE.pathname}`;

/** What this browser keeps for us, as far as its owner lets it. */
export function storage(kind) {
  try {
    return window[kind];
  } catch {
    return null; // refused: then nothing is kept
  }
}
const ofTab = storage("sessionStorage");

/** The address of a resource: address("api/jobs"). */
export const address = (path) => new URL(path, BASE).href;

/** A path out of segments: each encoded, and the "/" in the id of a child job written ":". */
export const segments = (...parts) => parts.map((part) => encodeURIComponent(String(part).replaceAll("/", ":"))).join("/");

/** The token of this tab, or null. */
export const token = signal(ofTab?.getItem(KEPT) ?? null);

/** Whether the server refused us for want of a token: null, "missing" or "wrong". */
export const refused = signal(null);

/** Use this token from now on; null forgets it. */
export function useToken(secret) {
  if (secret) ofTab?.setItem(KEPT, secret);
  else ofTab?.removeItem(KEPT);
  token.value = secret;
  refused.value = null;
}

let skew = 0; // seconds that the server's clock is ahead of ours, as far as its whole seconds tell

/** The server's clock, as near as we know it: UTC epoch seconds. */
export const serverTime = () => Date.now() / 1000 + skew;

function setClock(response) {
  const said = Date.parse(response.headers.get("Date") ?? "") / 1000;
  if (Number.isNaN(said)) return;
  const ahead = said + 0.5 - Date.now() / 1000;
  skew = Math.abs(ahead) < 2 ? 0 : ahead;
}

/** What went wrong. status is 0 where no answer came; `said` is the problem+json, or {}. */
export class Problem extends Error {
  constructor(status, said, { retryAfter = null } = {}) {
    super(said.detail || said.title || WORDS[status] || (status ? `the server answered ${status}` : "no answer came"));
    this.status = status;
    this.said = said;
    this.title = said.title || WORDS[status] || "Something went wrong";
    this.retryAfter = retryAfter;
  }

  /** Whether nobody knows if it was done: asking again for the same thing is the way to find out. */
  get unanswered() {
    return this.status === 0 || this.status >= 500 || this.status === 429;
  }

  get kind() {
    return (this.said.type ?? "").split("/").pop();
  }
}

const WORDS = {
  0: "The server cannot be reached",
  401: "A token is needed",
  403: "This token does not allow it",
  404: "It does not exist",
  409: "Its present state does not allow it",
  413: "It is too large",
  422: "It cannot be done as asked",
  429: "Too many requests",
  500: "The server failed",
  502: "The server cannot be reached",
  503: "The server cannot do it now",
  504: "The server took too long",
};

/** Ask for something; the response, whatever its status. Raises Problem where none came, and for 401. */
export async function ask(method, path, { body, headers = {}, key, signal: stop } = {}) {
  const sent = { Accept: "application/json", ...headers };
  const secret = token.peek();
  if (secret) sent.Authorization = `Bearer ${secret}`;
  if (body !== undefined) sent["Content-Type"] = "application/json";
  if (key) sent["Idempotency-Key"] = key;
  let response;
  try {
    response = await fetch(address(path), {
      method, headers: sent, body: body === undefined ? undefined : JSON.stringify(body), signal: stop,
      cache: "no-store", credentials: "omit", redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, {});
  }
  setClock(response);
  if (response.status === 401) {
    if (secret === token.peek()) refused.value = secret ? "wrong" : "missing"; // else it says nothing about the present one
    throw await problemOf(response);
  }
  return response;
}

/** What an answer that is no success says. */
export async function problemOf(response) {
  const after = Number(response.headers.get("Retry-After") ?? NaN);
  let said = {};
  try {
    said = (await response.json()) ?? {};
  } catch {
    // something between us and the server answered: the status says what can be said
  }
  return new Problem(response.status, said, { retryAfter: Number.isNaN(after) ? null : after });
}

/** Ask for JSON. Raises Problem. */
export async function json(method, path, options) {
  const response = await ask(method, path, options);
  if (!response.ok) throw await problemOf(response);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, {}); // cut off in the middle
  }
}

/** A key for one thing that is asked for, however often it is asked. */
export function freshKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
