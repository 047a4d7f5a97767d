// One run: where it stands, and what can be done about it.

import { html } from "../vendor/ui.js";
import { Actions } from "../actions.js";
import { Loaded, Page, Progress, State, Time } from "../components.js";
import { segments, useLive } from "../store.js";
import { safe } from "../text.js";

export function View({ parts: [, id] }) {
  const at = `api/jobs/${segments(id)}`;
  const job = useLive(at, { when: (event) => event.job_id === id || event.entity_id === id });
  return html`<${Page} title=${job.data.value?.name || id} heading=${safe(job.data.value?.name || id)}
    aside=${job.data.value && html`<${Actions} of=${job.data.value} at=${at} />`}>
    <${Loaded} of=${job} what="the run">${(run) => html`<dl class="facts">
      <dt>State</dt><dd><${State} state=${run.state} phase=${run.phase} /></dd>
      <dt>Progress</dt><dd><${Progress} counts=${run.counts} total=${run.total} /></dd>
      <dt>Begun</dt><dd><${Time} at=${run.started_at ?? run.created_at} /></dd>
      ${run.error && html`<dt>Error</dt><dd class="prose">${safe(run.error)}</dd>`}
    </dl>`}<//>
  <//>`;
}
