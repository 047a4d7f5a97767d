// The next steps of a task: the effect of each action, and of its time limits. Pure.
//
// Rules:
// - It has one sentence for each effect in the table of the runtime's own task (machines/builtin/task.py). Guards and
//   other lifecycles may decide otherwise, so the sentences promise no time.

const STOPS = { running: "cancelling", validating: "cancelling" };

/** The effect of an action, as [words, state or null]; null if it is not known. */
export function leadsTo(verb, task) {
  const waits = task.wait_until && task.wait_until > (task.hold_until ?? 0) ? "waiting" : "queued";
  const known = {
    approve: task.phase === "held" ? ["when no further approval is missing, to", waits] : ["its body goes on", null],
    reject: task.phase === "held" ? ["to", "cancelled"] : ["its body learns of the rejection", null],
    skip: task.phase === "pending" ? ["to", "skipped"] : ["in the next run, to", "skipped"],
    cancel: STOPS[task.phase] ? ["first to", STOPS[task.phase]] : ["to", "cancelled"],
    reset: ["its breaker no longer blocks it: to", "pending"],
    retry: task.phase === "circuit_open" ? ["to", "pending"] : ["begins the next run: to", "pending"],
  };
  return known[verb] ?? null;
}

const BY_ITSELF = {
  held: ["expires, and is then", "cancelled"], waiting: ["is", "queued"], retrying: ["runs again:", "queued"],
  running: ["has reached its time limit:", "timed_out"], timed_out: ["is given up", null], recovering: ["counts as lost", null],
  queued: ["has waited too long:", "failed"], validating: ["has taken too long:", "failed"], circuit_open: ["may be tried again", null],
  cancelling: ["is stopped by force:", "cancelled"],
};

/** The effect of the timer at `due_at`, if nothing else happens before: [words, state or null]; null if there is none. */
export function byItself(task) {
  return task.due_at ? (BY_ITSELF[task.phase] ?? ["its time is up", null]) : null;
}
