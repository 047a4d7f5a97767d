"""Deliberate bugs, each a small change of the library's source, that the simulation must catch.

`old` must occur exactly once in `machines/`, `actors/` and `runtime/` (for the bugs of several nodes: or once in the
simulated server, in place of the database). If it occurs nowhere any more, its test fails: then write the bug again,
for the code that makes the decision now.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutation:
    """A bug: its name, its change of the source, and the kinds of runs that show it.

    seed: the first run that is tried, since it shows the bug; the others follow, from 0 on.
    """

    name: str
    old: str
    new: str
    kinds: str
    seed: int = 0


MUTATIONS = (
    Mutation(
        "the end of an attempt that was given up counts for the present one",
        """    if ended.token != record.token:
        _refuse(task, ended)
""",
        """    if ended.token < 0:
        _refuse(task, ended)
""",
        "tools",
        seed=15,
    ),
    Mutation(
        "effects do not wait for the disk",
        "self._pending.append((journal.tail, turn.effects, turn.transitions))",
        "self._pending.append((journal.durable, turn.effects, turn.transitions))",
        "graphs",
    ),
    Mutation(
        "a lost attempt counts as a failed one",
        "    lost = end in LOSSES\n",
        '    lost = end == "exhausted"\n',
        "crashes",
        seed=1,
    ),
    Mutation(
        "a cancel passes over what waits for its backoff",
        "        if self.ended or (self.record.state == CANCELLING and not message.force):\n            return\n",
        "        if self.ended or self.record.state in {CANCELLING, S.RETRYING}:\n            return\n",
        "words crashes",
        seed=52,
    ),
    Mutation(
        "the permit of a breaker does not come back from a probe that was cancelled",
        """        if self.record.probe or self.record.previous_state == HALF_OPEN:
            self.tell_breaker("returned")
""",
        """        if self.record.previous_state == HALF_OPEN:
            self.tell_breaker("returned")
""",
        "tools",
        seed=138,
    ),
    Mutation(
        "the timer of a state outlives it",
        """            if self.timer is not None:
                self.disarm()
            put(""",
        """            if self.timer is not None:
                self.timer = None
            put(""",
        "graphs",
    ),
    Mutation(
        "an approval counts after its expiry",
        "    return facts.hold_until is None or decision.at < facts.hold_until\n",
        "    return True\n",
        "together journal words",
        seed=1,
    ),
    Mutation(
        "hooks that had not run are forgotten by a crash",
        "            kernel.run_hook(replace(row, tries=row.tries + 1))\n",
        "            kernel.turn.outbox_done.append(row.key)\n",
        "crashes",
        seed=131,
    ),
    Mutation(
        "cancel hooks are not run again after a crash",
        "        elif state == CANCELLING:\n            self._end_claim()\n            self.stopped()\n",
        "        elif state == CANCELLING:\n            self._end_claim()\n            self._over()\n",
        "crashes lifecycles",
        seed=29,
    ),
    Mutation(
        "a slot is given back twice",
        "        slot = self.slots.pop(token, None)\n        if slot is not None:\n",
        "        slot = self.slots.get(token)\n        if slot is not None:\n",
        "graphs",
    ),
    Mutation(
        "one more runs than may",
        "                if gate.used >= gate.limit:\n",
        "                if gate.used > gate.limit:\n",
        "graphs",
        seed=1,
    ),
    Mutation(
        "what was being validated passes by a crash",
        """        elif state == VALIDATING:
            self.fire(Event.RECOVER, replace(self.record, checked=0, test_results=()), reason=reason)
            validate(self)
""",
        """        elif state == VALIDATING:
            self.passed()
""",
        "crashes",
        seed=35,
    ),
    Mutation(
        "a command is answered without its key being kept",
        "        if reply.request is None:\n            self.effect(Answer(reply, value))\n",
        "        if True:\n            self.effect(Answer(reply, value))\n",
        "words",
    ),
    Mutation(
        "a drain counts as a loss",
        """    journal(task, stopped, end="returned")
    task.tell_breaker("returned")
""",
        """    task.change(lost_attempts=task.record.lost_attempts + 1)
    journal(task, stopped, end="returned")
    task.tell_breaker("returned")
""",
        "crashes",
        seed=14,
    ),
)

BETWEEN_NODES = (
    Mutation(
        "the database takes what a fenced node writes",
        "        self.reach(session)\n        if batch > session.batch:\n",
        "        if batch > session.batch:\n",
        "nodes",
        seed=45,
    ),
    Mutation(
        "a node takes over without a new epoch",
        "        self.rise(session)\n        loaded = self.load(",
        "        loaded = self.load(",
        "nodes",
        seed=4,
    ),
    Mutation(
        "nodes are fenced right after an outage of the server",
        "            if (silent and awake) or ",
        "            if silent or ",
        "nodes",
        seed=8,
    ),
    Mutation(
        "what was taken over is numbered as before",
        "            kernel.count_from(message.loaded.last_key, message.loaded.last_seq)\n",
        "",
        "nodes",
        seed=4,
    ),
    Mutation(
        "more of a tool is given out than there is",
        "    granted = max(0, min(max(parts[node], kept), left))\n",
        "    granted = max(parts[node], kept)\n",
        "nodes",
        seed=15,
    ),
)

IN_FLOWS = (
    Mutation(
        "a call that was interrupted among parallel ones is taken for a changed body",
        "        return None if first is None or self._lacks_before(first) else first\n",
        "        return first\n",
        "flows",
        seed=43,
    ),
    Mutation(
        "a body goes on before its step is durable",
        "        kernel.effect(Answer(message.reply, keep(task, message.step)))\n",
        "        message.reply.answer(keep(task, message.step), None)\n",
        "flows",
    ),
    Mutation(
        "the history of a flow is not read",
        "                self._kept[token] = rows\n",
        "                self._kept[token] = []\n",
        "flows",
    ),
    Mutation(
        "that a message was received is not persisted",
        "        self._kernel.turn.extra.append(received)\n",
        "",
        "flows",
    ),
    Mutation(
        "unread messages are forgotten by a restart",
        "            self.mailbox.load(mine)\n",
        "            self.mailbox.load([])\n",
        "flows",
        seed=3,
    ),
    Mutation(
        "a flow that is replayed sends under another key",
        'request_id=f"{SEND}{row.message or row.key}"',
        'request_id=f"{SEND}{row.message or row.key}{self.token}"',
        "flows",
        seed=4,
    ),
    Mutation(
        "a step holds its tool for ever",
        "        gate.used -= 1\n        if gate.waiting:\n",
        "        if gate.waiting:\n",
        "flows",
        seed=7,
    ),
    Mutation(
        "a wait that its body gave up is not kept as given up",
        "            while way is not None and way != row.given_up:\n",
        "            while False:\n",
        "flows",
    ),
)
"""Bugs of durable steps and of messages, for `simulation/flows.py`."""
