import assert from "node:assert/strict";
import { test } from "node:test";
import { byItself, leadsTo } from "./views/leads.js";

test("each action says where it leads from where the task is", () => {
  const held = { phase: "held", hold_until: 50, wait_until: null };
  assert.equal(leadsTo("approve", held)[1], "queued");
  assert.equal(leadsTo("approve", { ...held, wait_until: 100 })[1], "waiting");
  assert.equal(leadsTo("reject", held)[1], "cancelled");
  assert.equal(leadsTo("cancel", { phase: "running" })[1], "cancelling");
  assert.equal(leadsTo("cancel", { phase: "queued" })[1], "cancelled");
  assert.match(leadsTo("skip", { phase: "failed" })[0], /next run/);
  assert.equal(leadsTo("approve", { phase: "running" })[1], null);
  assert.equal(leadsTo("unheard of", held), null);
});

test("what happens by itself is told only where something is due", () => {
  assert.equal(byItself({ phase: "retrying", due_at: 5 })[1], "queued");
  assert.equal(byItself({ phase: "pending", due_at: null }), null);
  assert.equal(byItself({ phase: "a new one", due_at: 5 })[1], null);
});
