// The graph of a run with the states of its tasks, updated by the transitions.
//
// Rules:
// - The whole graph is read once for each run, as columns of numbers and names: 20,000 tasks take about a megabyte, and
//   every view of the run (graph, table, timeline) gets names and states from here.
// - States change in place; then `changed` counts up, at most every REFRESH ms, so that a busy run is not drawn too often.

import { signal, useMemo, useEffect } from "../vendor/ui.js";
import { segments, useEvents, useLive } from "../store.js";

const REFRESH = 250; // ms
const RUNS = new Set(["running", "timed_out", "cancelling"]); // phases in which a body may say something

/** The graph that was read, with: numbers (by name), progress (of running bodies, by number), changed (a signal). */
export function modelOf(read) {
  const numbers = new Map(read.names.map((name, number) => [name, number]));
  const progress = new Map(Object.entries(read.progress ?? {}).map(([name, told]) => [numbers.get(name), told]));
  return { ...read, progress, states: [...read.states], phases: [...read.phases], numbers, changed: signal(0), timer: null };
}

/** The number of the task of a transition, or undefined. */
export function taskOf(model, event) {
  if (event.kind !== "task" || !event.workstream_id) return undefined;
  return model.numbers.get(event.entity_id.slice(event.workstream_id.length + 1));
}

/** Apply transitions. Returns whether anything changed. */
export function take(model, batch, workstream) {
  let any = false;
  for (const event of batch) {
    if (event.workstream_id !== workstream) continue;
    const number = taskOf(model, event);
    if (number === undefined) continue;
    model.states[number] = event.to_state;
    model.phases[number] = phaseOf(event);
    if (!RUNS.has(model.phases[number]) || event.from_state === "queued") model.progress.delete(number); // the attempt is over, or begins
    any = true;
  }
  return any;
}

/** Apply what a running body has said of its progress. Returns whether it is of this run. */
export function takeProgress(model, notice, workstream) {
  const id = notice.entity_id ?? "";
  const number = id.startsWith(`${workstream}/`) ? model.numbers.get(id.slice(workstream.length + 1)) : undefined;
  if (number === undefined) return false;
  const { done, of = null, text = "" } = notice.facts ?? {};
  model.progress.set(number, { done, of, text });
  return true;
}

/** The phase of the state that was entered. */
export const phaseOf = (event) => event.phases?.[1] ?? event.to_state;

/** How many tasks are in each phase. */
export function phaseCounts(model, tasks = null) {
  const counts = {};
  if (tasks === null) for (const phase of model.phases) counts[phase] = (counts[phase] ?? 0) + 1;
  else for (const task of tasks) counts[model.phases[task]] = (counts[model.phases[task]] ?? 0) + 1;
  return counts;
}

/** The graph of a job's present run: {live, model}; model is null until the graph was read. */
export function useGraph(id, workstream) {
  const live = useLive(`api/jobs/${segments(id)}/graph`, {
    when: (event) => event.job_id === id && event.kind === "workstream" && (event.from_state === null || event.event === "tasks_created"),
  });
  const read = live.data.value;
  const model = useMemo(() => (read ? modelOf(read) : null), [read]);
  const soon = () => {
    model.timer ??= setTimeout(() => {
      model.timer = null;
      model.changed.value += 1;
    }, REFRESH);
  };
  useEvents({
    events: (batch) => model && take(model, batch, workstream) && soon(),
    progress: (notice) => model && takeProgress(model, notice, workstream) && soon(),
  });
  useEffect(() => () => clearTimeout(model?.timer), [model]);
  return { live, model };
}
