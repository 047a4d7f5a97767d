// The filter of a run's tasks: by state and by a part of the name, kept in the address.

import { html, useEffect, useMemo, useRef } from "../vendor/ui.js";
import { Icon, iconOf, tone } from "../components.js";
import { ask } from "../router.js";
import { useStill } from "../still.js";
import { number, spoken } from "../text.js";
import { phaseCounts } from "./live-graph.js";

/** The numbers of the tasks that match the query, in the order of the file. */
export function usePicked(model, query) {
  const changed = model.changed.value;
  const phases = (query.phase ?? "").split(",").filter(Boolean);
  const text = (query.name ?? "").toLowerCase();
  return useMemo(() => {
    const picked = [];
    for (let task = 0; task < model.names.length; task += 1) {
      if (phases.length && !phases.includes(model.phases[task])) continue;
      if (text && !model.names[task].toLowerCase().includes(text)) continue;
      picked.push(task);
    }
    return picked;
  }, [model, phases.length ? changed : 0, query.phase, text]);
}

export function Picking({ model, query, children = null }) {
  const timer = useRef(null);
  useEffect(() => () => clearTimeout(timer.current), []);
  const phases = (query.phase ?? "").split(",").filter(Boolean);
  const counts = phaseCounts(model);
  const listed = [...new Set([...Object.keys(counts), ...phases])].sort((a, b) => (counts[b] ?? 0) - (counts[a] ?? 0) || a.localeCompare(b));
  const chips = useStill(listed, { key: String });
  const toggle = (phase) => ask({ phase: phases.includes(phase) ? phases.filter((one) => one !== phase).join(",") : [...phases, phase].join(",") });
  const find = (event) => {
    const name = event.target.value.trim();
    clearTimeout(timer.current);
    timer.current = setTimeout(() => ask({ name }), 200);
  };
  return html`<div class="filters" role="search">
    <div class="find"><${Icon} name="search" />
      <input type="search" aria-label="Find tasks by name" placeholder="Find tasks by name" defaultValue=${query.name ?? ""} onInput=${find} maxlength="200" spellcheck=${false} />
    </div>
    <div class="chips" role="group" aria-label="Only those that are" ref=${chips.ref}>
      ${chips.rows.map((phase) => html`<button key=${phase} type="button" class=${`tone-${tone(phase)}`} aria-pressed=${phases.includes(phase)} onClick=${() => toggle(phase)}>
        <${Icon} name=${iconOf(phase)} />${spoken(phase)} <span class="num">${number(counts[phase] ?? 0)}</span></button>`)}
    </div>
    ${children}
  </div>`;
}
