// Words, numbers and times as people read them. Pure: nothing here reads the page or the clock.
//
// Rules:
// - Names, reasons and errors are untrusted. They are always shown as text, and `safe` escapes characters that change
//   the direction of writing, or that are invisible.
// - Times are UTC epoch seconds, as on the wire; they are shown in the reader's own time zone.

const HIDDEN = /[\u0000-\u001f\u007f-\u009f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;
const HIDDEN_IN_LINES = new RegExp(HIDDEN.source.replace("\\u0000-\\u001f", "\\u0000-\\u0008\\u000b-\\u001f"), "gu");

const escaped = (character) => {
  const number = character.codePointAt(0);
  return number < 256 ? `\\x${number.toString(16).padStart(2, "0")}` : `\\u${number.toString(16).padStart(4, "0")}`;
};

/** The text with escapes for control and direction characters; `lines` keeps line ends and tabs. */
export function safe(text, { lines = false } = {}) {
  return text === null || text === undefined ? "" : String(text).replace(lines ? HIDDEN_IN_LINES : HIDDEN, escaped);
}

const numbers = new Intl.NumberFormat("en");
/** 12345 -> "12,345". */
export const number = (value) => numbers.format(value);

/** counted(1, "task") -> "1 task"; counted(2, "task") -> "2 tasks". */
export const counted = (count, word, many = `${word}s`) => `${number(count)} ${count === 1 ? word : many}`;

/** ["a", "b", "c"] -> "a, b and c". */
export function listed(words, last = "and") {
  return words.length < 2 ? (words[0] ?? "") : `${words.slice(0, -1).join(", ")} ${last} ${words.at(-1)}`;
}

/** A word of the API as people write it: "circuit_open" -> "circuit open". */
export const spoken = (word) => safe(word).replaceAll("_", " ");

// The phases of a run's tasks that are counted together, in the order of its bar. Cancelled and skipped tasks are separate:
// a cancelled one was stopped, a skipped one was not needed.
const GROUPS = [
  ["good", "done", ["completed"]],
  ["bad", "failed", ["failed"]],
  ["idle", "skipped", ["skipped"]],
  ["idle", "cancelled", ["cancelled"]],
  ["active", "running", ["running", "validating", "executing"]],
  ["warn", "in trouble", ["retrying", "timed_out", "recovering", "circuit_open", "half_open", "cancelling"]],
  ["wait", "waiting", ["held", "waiting", "paused", "deciding"]],
];
const ENDED = ["completed", "skipped", "cancelled", "failed"];

const sumOf = (counts, phases) => phases.reduce((sum, phase) => sum + (counts[phase] ?? 0), 0);

/** The tasks of a run by group: [{tone, word, count}], without empty groups. Several groups may have one tone. */
export const groups = (counts) =>
  GROUPS.map(([tone, word, phases]) => ({ tone, word, count: sumOf(counts, phases) })).filter(({ count }) => count > 0);

/** The number of tasks that have ended, in any way. */
export const ended = (counts) => sumOf(counts, ENDED);

const two = (value) => String(value).padStart(2, "0");

/** A measured duration: "850 ms", "12 s", "3 min 05 s", "2 h 10 min", "3 d 4 h". */
export function span(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "";
  if (seconds > 0 && seconds < 0.9995) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds > 0 && seconds < 9.95) return `${(Math.round(seconds * 10) / 10).toString()} s`;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  if (whole < 86400) return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
  return `${Math.floor(whole / 86400)} d ${Math.floor((whole % 86400) / 3600)} h`;
}

/** A duration from a setting, in one unit: "90 s", "1 min", "72 h". */
export function setting(seconds) {
  const [size, unit] = [[3600, "h"], [60, "min"]].find(([whole]) => seconds >= whole && seconds % whole === 0) ?? [1, "s"];
  return `${number(seconds / size)} ${unit}`;
}

/** A duration in whole seconds, for clocks and countdowns: the text never jumps between forms. */
export const ticking = (seconds) => span(Math.max(0, Math.ceil(seconds)));

/** The time since a moment, roughly: "now", "12 s ago", "5 min ago", "3 h ago", "2 d ago". */
export function ago(at, now) {
  const past = now - at;
  if (past < 2) return "now";
  if (past < 60) return `${Math.floor(past)} s ago`;
  if (past < 3600) return `${Math.floor(past / 60)} min ago`;
  if (past < 86400) return `${Math.floor(past / 3600)} h ago`;
  return `${Math.floor(past / 86400)} d ago`;
}

const clocks = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const days = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });
const fulls = new Intl.DateTimeFormat("en-GB", { dateStyle: "long", timeStyle: "long" });

/** "12:31:05". */
export const clock = (at) => (told(at) ? clocks.format(at * 1000) : none(at));

// An old journal may hold numbers that are no times: formatting one would throw, and break the whole page.
const told = (at) => at !== null && Math.abs(at) <= 8.64e12;
const none = (at) => `no time: ${at}`;

/** "12:31:05" today, "28 Nov 12:31:05" on another day. */
export function moment(at, now) {
  if (!told(at)) return none(at);
  const [day, today] = [days.format(at * 1000), days.format(now * 1000)];
  return day === today && Math.abs(now - at) < 86400 ? clock(at) : `${day} ${clock(at)}`;
}

const STAMP = /\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|\+00:00)(?![\w:])/g;

const zoned = new Intl.DateTimeFormat("en-GB", { timeZoneName: "short" });

/** A due time with the name of the reader's time zone: "28 Nov 12:31:05 CET". */
export function due(at, now) {
  if (!told(at)) return none(at);
  const zone = zoned.formatToParts(at * 1000).find(({ type }) => type === "timeZoneName");
  return `${moment(at, now)} ${zone.value}`;
}

/** A text whose times (ISO 8601 in UTC) are converted to the reader's time zone, with its name. */
export const timed = (text, now) => text.replace(STAMP, (stamp) => due(Date.parse(stamp) / 1000, now));

/** The whole date with its zone. */
export const full = (at) => (told(at) ? fulls.format(at * 1000) : none(at));

export const iso = (at) => (told(at) ? new Date(at * 1000).toISOString() : none(at));
