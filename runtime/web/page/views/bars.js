// The bars of a timeline: the phases of each task over time, updated by its transitions. Pure.
//
// Rules:
// - A bar is a stay in one phase: {phase, from, to, attempt}; to is null while it lasts. A task has no bar before it begins
//   (pending) and after its end.
// - Transitions may arrive twice or late (store.js): one that a bar shows already, or that is older than the last, is ignored.

const NONE = new Set(["pending", "planned", "completed", "failed", "cancelled", "skipped"]);

const RECENT = 6; // the number of last bars that may show a repeated transition already

/** The words for a stay in a phase. */
export const STAYS = {
  running: "ran", queued: "waited for a worker", validating: "was validated", retrying: "backed off", held: "was held",
  waiting: "waited for its time", circuit_open: "was parked by its breaker", half_open: "had the breaker's permit",
  recovering: "was recovering", timed_out: "was being stopped after its time was up", cancelling: "was being cancelled",
  deciding: "was being decided on",
};

/** Apply one transition. Returns whether the bars changed. */
export function enter(bars, phase, at, attempt) {
  const last = bars.at(-1);
  if (last && at < (last.to ?? last.from)) return false;
  if (bars.slice(-RECENT).some((bar) => bar.phase === phase && bar.from === at)) return false;
  if (last && last.to === null) {
    if (last.phase === phase) return false; // such as an approval, while further approvals are missing
    last.to = at;
  } else if (NONE.has(phase)) return false;
  if (!NONE.has(phase)) bars.push({ phase, from: at, to: null, attempt });
  return true;
}

/** The range from the first bar to `now` in epoch seconds, with a small margin; at least a second. */
export function spanOf(rows, begin, now) {
  let from = begin ?? now;
  let to = begin ?? now;
  for (const bars of rows) {
    if (!bars.length) continue;
    from = Math.min(from, bars[0].from);
    to = Math.max(to, bars.at(-1).to ?? now);
  }
  const room = Math.max(1, to - from) * 0.02;
  return [from - room, Math.max(to, from + 1) + room];
}

/** A range of time made longer or shorter around a point in it (0..1), never shorter than `least` seconds. */
export function zoomed([from, to], factor, about = 0.5, least = 0.05) {
  const length = Math.max(least, (to - from) * factor);
  const pivot = from + (to - from) * about;
  return [pivot - length * about, pivot + length * (1 - about)];
}

/** The visible bars of a row: [{bar, x, width}], each at least `least` px wide; of equal bars at the same place only one. */
export function visibleBars(bars, scale, now, width, least = 2) {
  const seen = [];
  const right = new Map(); // the right end of the last drawn bar, by phase
  for (const bar of bars) {
    const x0 = scale(bar.from);
    const x1 = scale(bar.to ?? now);
    if (x1 < -least || x0 > width) continue;
    const x = Math.max(-4, x0);
    const wide = Math.max(least, Math.min(width + 4, x1) - x);
    if (wide <= least && x < right.get(bar.phase)) continue;
    seen.push({ bar, x, width: wide });
    right.set(bar.phase, x + wide);
  }
  return seen;
}

/** A row in words: "ran 2 s, backed off 1.5 s, runs since 3 s". */
export function told(bars, now, span, phrase) {
  if (!bars.length) return "has not begun";
  const shown = bars.slice(-6).map((bar) => `${phrase(bar)} ${span((bar.to ?? now) - bar.from)}${bar.to === null ? " so far" : ""}`);
  return `${bars.length > 6 ? `${bars.length - 6} before, ` : ""}${shown.join(", ")}`;
}
