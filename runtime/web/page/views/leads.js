// The next steps of a task: the effect of each action, and of its time limits. Pure.
//
// Rules:
// - It tells what the tables in docs say of the runtime's own task (machines/builtin/task.py), in one sentence each; guards and
//   other lifecycles may decide otherwise, so the words are "to", never a promise of when.

const STOPS = { running: "cancelling", validating: "cancelling" };

/** Where an action leads, as [words, state or null]; null where there is nothing to say. */
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

/** What happens at `due_at` if nothing else does: [words, state or null]; null where nothing does. */
export function byItself(task) {
  return task.due_at ? (BY_ITSELF[task.phase] ?? ["its time is up", null]) : null;
}
