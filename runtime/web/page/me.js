// Who is here, as the server says by the token: whose name stands in the corner, and which actions are theirs.
//
//     me.value                     {name|null, scopes, commands}, or null while nobody knows: then everything is offered
//     may("approve")               whether that verb is theirs
//     html`<${Mine} />`            once, in the shell: reads it, and shows the name

import { html, signal, useEffect } from "./vendor/ui.js";
import { Icon, Name } from "./components.js";
import { useLive } from "./store.js";
import { listed } from "./text.js";

export const me = signal(null);

const DECISIONS = new Set(["approve", "reject"]);
const scopeOf = (verb) => DECISIONS.has(verb) ? "approve" : "operate";

/** Whether who is here may do that. */
export const may = (verb) => me.value === null || me.value.scopes.includes(scopeOf(verb));

/** Why they may not, in words. */
export const whyNot = (verb) => `Your token has not the scope “${scopeOf(verb)}”.`;

const ALLOWS = { read: "look", operate: "operate", approve: "decide" };

export function Mine() {
  const told = useLive("api/me", { when: () => false });
  const known = told.data.value;
  useEffect(() => {
    if (known) me.value = known;
  }, [known]);
  if (!known?.name) return null;
  const words = listed(["read", "operate", "approve"].filter((scope) => known.scopes.includes(scope)).map((scope) => ALLOWS[scope]));
  const only = known.scopes.length < 3 ? "only " : "";
  return html`<span class="me" title=${`You may ${only}${words}.`}><${Icon} name="person" /><${Name} text=${known.name} />
    <span class="unseen">: you may ${only}${words}</span></span>`;
}
