"""Takes a snapshot of a runtime's present state: its `Metrics`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from .observation.metrics import Metrics

if TYPE_CHECKING:
    from .cluster.membership import Membership
    from .services import RuntimeServices


def snapshot(services: RuntimeServices) -> Metrics:
    """Take a snapshot of a runtime, in any thread."""
    host, requests, member = services.host, services.requests, services.membership
    kernel, journal, dispatcher, counting = host.kernel, host.journal, host.dispatcher, host.counting
    workforce = host.workforce
    workers: Counter[tuple[str, str]] = Counter()
    slots: Counter[str] = Counter()
    used: Counter[str] = Counter()
    for worker in list(workforce.workers.values()):
        record = worker.record
        workers[record.engine, str(record.state)] += 1
        slots[record.engine] += record.capacity
        used[record.engine] += worker.used
    timers, commits = dispatcher.timers, journal.committed
    return Metrics(
        transitions=counting.pairs, states=counting.states(), rejected=dict(kernel.rejected), stale=kernel.stale,
        requests=requests.asked, request_hits=requests.hits, inbox=host.waiting, ready=len(dispatcher.ready),
        events_left=host.events_left,
        commits=commits.commits, committed=commits.transitions, commit_seconds=commits.seconds,
        slowest_commit=commits.slowest, backlog=journal.backlog,
        breakers={name: str(breaker.record.state) for name, breaker in list(workforce.breakers.items())},
        workers=dict(workers), slots=dict(slots), slots_used=dict(used), timers_fired=timers.fired,
        timers_late=timers.late, latest_timer=timers.latest, failed_hooks=services.caller.failed_hooks,
        unlogged=host.hub.unlogged, actors_failed=host.notices.counts["actor_failed"],
        notices=dict(host.notices.counts),
        dead_letters={str(reason): count for reason, count in dispatcher.dead_letters.counts.items() if count},
        actors_restarted=host.notices.counts["actor_restarted"], actors_stopped=host.notices.counts["actor_stopped"],
        tool_invocations=dict(kernel.invocations), steps=dict(kernel.steps),
        tests_passed=kernel.tests[True], tests_failed=kernel.tests[False],
        cpu_seconds=services.caller.cpu_seconds.copy(), peak_memory_bytes=services.caller.peak_memory_bytes.copy(),
        **({} if member is None else _of_node(member)),
    )  # fmt: skip


def _of_node(member: Membership) -> dict[str, Any]:
    return {
        "jobs_taken": member.jobs_taken, "nodes_fenced": member.nodes_fenced, "nodes": member.nodes_living,
        "lease_left": member.lease_left,
    }  # fmt: skip
