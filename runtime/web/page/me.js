// The person at the page, by the token: the name in the corner, and the actions they may use.
//
//     me.value                     {name|null, scopes, commands}; null while unknown: then every action is offered
//     may("approve")               whether this person may use that verb
//     html`<${Mine} />`            once, in the shell: reads `me`, and shows the name

import { html, signal, useEffect } from "./vendor/ui.js";
import { Icon, Name } from "./components.js";
import { useLive } from "./store.js";
import { listed } from "./text.js";

export const me = signal(null);

const DECISIONS = new Set(["approve", "reject"]);
const scopeOf = (verb) => DECISIONS.has(verb) ? "approve" : "operate";

/** Whether this person may use that verb. */
export const may = (verb) => me.value === null || me.value.scopes.includes(scopeOf(verb));

/** The reason why this person may not use a verb, in words. */
export const whyNot = (verb) => `Your token does not have the scope “${scopeOf(verb)}”.`;

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
