// Requests to the API of this board, and their problems in words.
//
// Rules:
// - Addresses are relative to the page's address: a board may be mounted under any prefix.
// - The page asks for a token if the server requires one, and keeps it for this tab only.
// - Every failure is a Problem: the server's answer (problem+json), or no answer (`unanswered`). Without an answer it is
//   not known whether the server has executed the request.

import { signal } from "./vendor/ui.js";

const BASE = new URL("./", location.href.replace(/[?#].*$/, ""));
const KEPT = `callboard token ${BASE.pathname}`;

/** The storage of this tab, if the browser's settings allow it. */
export function storage(kind) {
  try {
    return window[kind];
  } catch {
    return null; // the browser refuses it: then nothing is stored
  }
}
const ofTab = storage("sessionStorage");

/** The address of a resource: address("api/jobs"). */
export const address = (path) => new URL(path, BASE).href;

/** Make a path from segments: each is encoded, and the "/" in the id of a child job is written as ":". */
export const segments = (...parts) => parts.map((part) => encodeURIComponent(String(part).replaceAll("/", ":"))).join("/");

/** The token of this tab, or null. */
export const token = signal(ofTab?.getItem(KEPT) ?? null);

/** Whether the server refused the last request because of the token: null, "missing" or "wrong". */
export const refused = signal(null);

/** Use this token from now on; null forgets it. */
export function useToken(secret) {
  if (secret) ofTab?.setItem(KEPT, secret);
  else ofTab?.removeItem(KEPT);
  token.value = secret;
  refused.value = null;
}

let skew = 0; // seconds that the server's clock is ahead of this one; the server's answers have whole seconds only

/** The server's time, as exactly as it is known: UTC epoch seconds. */
export const serverTime = () => Date.now() / 1000 + skew;

function setClock(response) {
  const said = Date.parse(response.headers.get("Date") ?? "") / 1000;
  if (Number.isNaN(said)) return;
  const ahead = said + 0.5 - Date.now() / 1000;
  skew = Math.abs(ahead) < 2 ? 0 : ahead;
}

/** A failed request. status is 0 if no answer came; `said` is the problem+json, or {}. */
export class Problem extends Error {
  constructor(status, said, { retryAfter = null } = {}) {
    super(said.detail || said.title || WORDS[status] || (status ? `the server answered ${status}` : "no answer came"));
    this.status = status;
    this.said = said;
    this.title = said.title || WORDS[status] || "Something went wrong";
    this.retryAfter = retryAfter;
  }

  /** Whether it is not known if the server has executed the request. Repeating it with the same key is safe. */
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

/** Send a request. Returns the response with any status. Throws Problem if no response came, and for 401. */
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
    if (secret === token.peek()) refused.value = secret ? "wrong" : "missing"; // otherwise the token was changed meanwhile
    throw await problemOf(response);
  }
  return response;
}

/** The Problem for an unsuccessful response. */
export async function problemOf(response) {
  const after = Number(response.headers.get("Retry-After") ?? NaN);
  let said = {};
  try {
    said = (await response.json()) ?? {};
  } catch {
    // a proxy in between has answered: only the status is known
  }
  return new Problem(response.status, said, { retryAfter: Number.isNaN(after) ? null : after });
}

/** Request JSON. Throws Problem. */
export async function json(method, path, options) {
  const response = await ask(method, path, options);
  if (!response.ok) throw await problemOf(response);
  try {
    return await response.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, {}); // the response was cut off
  }
}

/** Make an idempotency key for one request, which is the same for all its tries. */
export function freshKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
