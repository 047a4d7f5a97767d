// The results of the acceptance tests that have ended, of a task or of a whole run.

import { html } from "../vendor/ui.js";
import { Icon } from "../components.js";
import { counted, number, safe, span } from "../text.js";

/** {check, passed, error, exit_code, duration_ms} each; shows nothing without tests. */
export function Tests({ results }) {
  if (!results?.length) return null;
  const failed = results.filter(({ passed }) => !passed).length;
  return html`<section class="tests" aria-label="Acceptance tests">
    <h3>Acceptance tests</h3>
    <p class="soft">${failed ? `${number(failed)} of ${counted(results.length, "test")} not met` : `${counted(results.length, "test")} met`}</p>
    <ul class="clauses">${results.map((one, at) => html`<li key=${at} class=${`tone-${one.passed ? "good" : "bad"}`}>
      <${Icon} name=${one.passed ? "check" : "cross"} />
      <span class="prose"><code>${safe(one.check)}</code> ${one.passed ? "met" : "not met"}${told(one)}${one.error ? html`: ${safe(one.error)}` : ""}</span></li>`)}</ul>
  </section>`;
}

const given = (value) => value !== null && value !== undefined;

function told({ exit_code: code, duration_ms: took }) {
  const known = [given(code) && code !== 0 && `exit code ${code}`, given(took) && `took ${span(took / 1000)}`].filter(Boolean);
  return known.length ? html` <span class="soft">(${known.join(", ")})</span>` : "";
}
