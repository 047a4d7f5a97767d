"""Plans: the jobs, faults and commands of one run of the simulation, all drawn from one seed.

Rules
-----
- The same seed and kind make the same plan, on every machine. A plan is a value: while it runs, only the order of
  events that are due at the same time is drawn, from a `Random` of the plan's seed.
- A smaller plan is the same plan without some parts: a body's behaviour is drawn from its name and its attempt, not
  from earlier draws. So a plan without a task or a move has the same other parts.
- There are few different durations, so that timers are often due at the same instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, TypeVar

from callboard.actors.spec.model import (
    Alert,
    Approval,
    Breaker,
    Check,
    Clause,
    Condition,
    Defaults,
    HealthChecks,
    Hook,
    Retry,
    Task,
    Tool,
    Worker,
    Workstream,
)

T = TypeVar("T")
NAMES = "abcdefgh"
PEOPLE = ("ana", "ben", "cem")
TIMES = (1.0, 2.0, 5.0, 10.0, 30.0)
BODIES = "tests.reliability.simulation.bodies"
PUBLISHED = ("pipeline", "orchestration", "fleet", "guarded", "execution")
TOOLS = ("press", "saw")

WORDS = (
    "cancel", "force", "pause", "resume", "approve", "approve", "reject", "skip", "retry", "reset", "trip",
    "reset_breaker", "again", "too_late",
)  # fmt: skip
OPERATORS = ("pause_worker", "resume_worker", "shut_down_worker", "terminate_worker", "start_worker")
HEALTH = ("die", "freeze", "thaw", "thaw", "late", "double", "beat")
HOST = ("crash", "clock", "sick", "drain", "stand_still", "too_late")

KINDS: dict[str, tuple[str, ...]] = {
    "graphs": ("wait", "wait", "cancel", "crash"),
    "crashes": ("crash", "crash", "crash", "wait", "cancel", "force", "retry", "drain"),
    "workers": (*HEALTH, *HEALTH, *OPERATORS, "crash", "wait", "wait", "stand_still"),
    "tools": (
        "cancel_probe",
        "cancel_probe",
        "cancel",
        "force",
        "trip",
        "reset_breaker",
        "reset",
        "crash",
        "wait",
        "wait",
        "pause",
        "resume",
        "drain",
    ),
    "words": (*WORDS, *WORDS, "crash", "wait", "wait", "wait"),
    "journal": ("sick", "sick", "clock", "clock", "too_late", "crash", "cancel", "approve", "wait", "wait", "drain"),
    "lifecycles": (*WORDS, *HEALTH, "crash", "crash", "wait", "wait", "drain"),
    "together": (*WORDS, *OPERATORS, *HEALTH, *HOST, "wait", "wait", "wait", "crash"),
}
"""The kinds of runs, and the moves in them. A move is drawn as often as it is listed here."""


@dataclass(frozen=True)
class Move:
    """A fault or command from outside, `steps` steps after the move before.

    pick (0 to 1) chooses among the targets that are possible at that moment; span is in seconds.
    """

    what: str
    steps: int
    pick: float
    span: float

    def __str__(self) -> str:
        return f"{self.what}({self.pick:.2f}, {self.span:g} s) after {self.steps} steps"


@dataclass(frozen=True)
class Order:
    """A job, and the number of moves after which it is submitted."""

    job_id: str
    spec: Workstream
    after: int = 0
    by: str | None = None


@dataclass(frozen=True)
class Behaviour:
    """The behaviour of a call that an engine runs.

    ends: ok | failed | no (an answer of a condition or check) | never. manners: its reaction to a request to stop:
    at_once | slow (it ends a while later) | deaf (it ends only if abandoned) | on (it ignores the request).
    """

    takes: float = 0.0
    ends: str = "ok"
    error: str = "boom"
    permanent: bool = False
    retry_after: float | None = None
    manners: str = "at_once"
    beats: float | None = None
    saves: bool = False
    child: bool = False
    asks: bool = False


@dataclass(frozen=True)
class Plan:
    """The jobs, faults and commands of a run."""

    seed: int
    kind: str
    orders: tuple[Order, ...]
    moves: tuple[Move, ...]
    workers: tuple[Worker, ...]
    tools: dict[str, Tool] = field(default_factory=dict)
    defaults: Defaults = field(default_factory=Defaults)
    health: HealthChecks = field(default_factory=HealthChecks)
    alerts: tuple[Alert, ...] = ()
    lifecycle: str | None = None

    def behaviour(self, name: str, kind: str, number: int) -> Behaviour:
        """The behaviour of the `number`th call of that kind for the entity `name`."""
        r = Random(f"{self.seed}/{self.kind}/{name}/{kind}/{number}")
        if kind != "body":
            return _answer(r, kind)
        return _body(r)

    def without_move(self, index: int) -> Plan:
        """Return the plan without one move."""
        return replace(self, moves=self.moves[:index] + self.moves[index + 1 :])

    def without_order(self, index: int) -> Plan:
        """Return the plan without one job."""
        return replace(self, orders=self.orders[:index] + self.orders[index + 1 :])

    def with_spec(self, index: int, spec: Workstream) -> Plan:
        """Return the plan with another workstream in one of its jobs."""
        orders = list(self.orders)
        orders[index] = replace(orders[index], spec=spec)
        return replace(self, orders=tuple(orders))


def make_plan(seed: int, kind: str) -> Plan:
    """The plan of a seed."""
    r = Random(f"{kind}/{seed}")
    lifecycle = r.choice(PUBLISHED) if kind == "lifecycles" else None
    if kind == "together" and r.random() < 0.2:
        lifecycle = r.choice(PUBLISHED)
    count = r.choice((0, 1, 2, 3, 4, 6, 8, 10)) if kind != "graphs" else r.choice((0, 0, 1, 2))
    moves = tuple(
        Move(r.choice(KINDS[kind]), r.choice((0, 1, 2, 3, 5, 8, 13, 21)), r.random(), r.choice((0.0, *TIMES, 70.0)))
        for _ in range(count)
    )
    orders = [Order("j0", workstream(r, kind, lifecycle), by=r.choice((None, "ana")))]
    for number in range(1, r.choice((1, 1, 1, 1, 2, 3))):
        after = r.randint(0, len(moves))
        orders.append(Order(f"j{number}", workstream(r, kind, lifecycle), after, r.choice((None, "ben"))))
    return Plan(
        seed=seed, kind=kind, orders=tuple(orders), moves=moves, workers=_workers(r, kind),
        tools={TOOLS[0]: _tool(r)} if r.random() < 0.2 else {},
        defaults=Defaults(recovery_timeout=r.choice((None, 5.0, 0.0))),
        health=HealthChecks(interval=r.choice((2.0, 10.0)), misses=r.choice((1, 2)), expire=r.choice((5.0, 60.0))),
        alerts=(Alert(command=["alert"]),) if r.random() < 0.05 else (),
        lifecycle=lifecycle,
    )  # fmt: skip


def _workers(r: Random, kind: str) -> tuple[Worker, ...]:
    workers = [
        Worker("loop", engine="loop", capacity=r.choice((1, 2, 2, 100))),
        Worker("command", engine="command", capacity=r.choice((1, 2))),
    ]
    if kind in {"workers", "lifecycles", "together"} or r.random() < 0.3:
        workers.append(Worker("p", engine="process", capacity=r.choice((1, 2)), capabilities=_some(r, ["gpu"], 0.5)))
    return tuple(each for worker in workers for each in worker.each())


def workstream(r: Random, kind: str, lifecycle: str | None) -> Workstream:
    """A workstream of up to eight tasks, each of which depends on some of the tasks before it."""
    optional = 0.0 if lifecycle == "pipeline" else 0.25
    tools = 0.85 if kind == "tools" else 0.4
    processes = 0.6 if kind in {"workers", "together", "lifecycles"} else 0.15
    tasks = []
    for number, name in enumerate(NAMES[: r.choice((1, 1, 2, 3, 3, 4, 5, 6, 8))]):
        before = NAMES[:number]
        needs = [other for other in before if r.random() < 0.25]
        after = [other for other in before if other not in needs and r.random() < 0.15]
        tasks.append(_task(r, name, needs, after, chances=(optional, processes, tools)))
    words = kind in {"words", "together", "lifecycles"}
    return Workstream(
        "flow", tasks=tasks,
        max_parallel=r.choice((None, None, 1, 2)),
        worker_count=r.choice((1, 2)) if r.random() < 0.1 else None,
        deadline=r.choice((40.0, 90.0)) if r.random() < 0.15 else None,
        hold=_hold(r) if r.random() < (0.15 if words else 0.05) else None,
        wait=r.choice(TIMES[:4]) if r.random() < 0.05 else None,
        retry=Retry(max_attempts=2, base_delay=r.choice(TIMES), jitter=0) if r.random() < 0.1 else None,
        priority=r.choice((0, 0, 1)),
        defaults=Defaults(timeout=30.0, kill_grace=r.choice((None, 2.0)), cancel_timeout=5.0),
        tools={name: _tool(r) for name in TOOLS if r.random() < 0.7},
        checks=_some(r, [Check(command=["check"], timeout=5)], 0.15),
        cancel_hooks=_some(r, _hooks(r, "cancel"), 0.2),
        on_completed=_some(r, _hooks(r, "completed"), 0.1),
        on_failed=_some(r, _hooks(r, "failed"), 0.1),
        on_cancelled=_some(r, _hooks(r, "cancelled"), 0.1),
    )  # fmt: skip


def _task(r: Random, name: str, needs: list[str], after: list[str], *, chances: tuple[float, float, float]) -> Task:
    optional, processes, tools = chances
    engine = "process" if r.random() < processes else r.choice(("loop", "loop", "command"))
    run: dict[str, Any] = {"command": ["work"]}
    if engine == "loop":
        run = {"run": f"{BODIES}:work", "engine": "loop"}
    elif engine == "process":
        run = {"run": f"{BODIES}:plain", "engine": "process"}
    retries = r.random() < tools
    hooks = _some(r, _hooks(r, "cancel"), 0.25)
    return Task(
        name, **run, depends_on=needs, after=after,
        optional=r.random() < optional,
        priority=r.choice((0, 0, 0, -1, 1)),
        tool=r.choice(TOOLS) if r.random() < tools else None,
        capabilities=r.choice((["gpu"], ["none"])) if engine == "process" and r.random() < 0.1 else [],
        retry=_retry(r) if retries else None,
        condition=Condition(command=["ask"], timeout=5) if r.random() < 0.15 else None,
        checks=_some(r, [Check(command=["check"], timeout=5)] * r.choice((1, 2)), 0.2),
        hold=_hold(r) if r.random() < 0.12 else None,
        wait=r.choice(TIMES) if r.random() < 0.06 else None,
        timeout=r.choice((3.0, 10.0)) if r.random() < tools - 0.1 else None,
        queue_timeout=20.0 if r.random() < 0.08 else None,
        heartbeat_timeout=4.0 if r.random() < 0.1 and engine != "command" else None,
        total_timeout=60.0 if r.random() < 0.1 else None,
        unroutable_timeout=10.0 if r.random() < 0.1 else None,
        kill_grace=r.choice((0.0, 3.0)) if r.random() < 0.3 else None,
        max_error_repeats=2 if r.random() < 0.08 else None,
        max_losses=r.choice((1, 2)) if r.random() < 0.2 else None,
        on_loss=r.choice(("fail", "park", "rerun")) if r.random() < 0.25 else None,
        on_exhausted="park" if r.random() < 0.12 else None,
        cancel_timeout=r.choice((2.0, 10.0)) if r.random() < 0.2 else None,
        cleanup_on_cancel=None if hooks or r.random() < 0.9 else False,
        cancel_hooks=hooks,
        on_completed=_some(r, _hooks(r, "completed"), 0.08),
        on_failed=_some(r, _hooks(r, "failed"), 0.08),
        on_cancelled=_some(r, _hooks(r, "cancelled"), 0.08),
    )  # fmt: skip


def _retry(r: Random) -> Retry:
    return Retry(
        max_attempts=r.choice((2, 3, 4)),
        base_delay=r.choice((0.0, 0.0, *TIMES[:3])),
        max_delay=10.0,
        jitter=r.choice((0.0, 0.25)),
        max_deferrals=2,
    )


def _tool(r: Random) -> Tool:
    breaker = Breaker(
        failure_threshold=r.choice((1, 2, 3)),
        cooldown=r.choice((2.0, 10.0, 30.0)),
        success_threshold=r.choice((1, 1, 2)),
    )
    return Tool(
        max_parallel=r.choice((None, 1, 2)), breaker=breaker, retry=_retry(r) if r.random() < 0.3 else None,
        timeout=r.choice((None, None, 5.0)),
    )  # fmt: skip


def _hold(r: Random) -> Approval:
    if r.random() < 0.3:
        return Approval(
            clauses=[Clause(person="ana"), Clause(people=r.choice((1, 2)))], expires="1h", self_approval=True
        )
    return Approval(people=r.choice((1, 1, 2)), expires=r.choice((10.0, 60.0, "72h")), self_approval=r.random() < 0.5)


def _hooks(r: Random, word: str) -> list[Hook]:
    return [Hook(command=["hook", word], timeout=r.choice((2.0, 5.0))) for _ in range(r.choice((1, 1, 2)))]


def _some(r: Random, items: Sequence[T], chance: float) -> list[T]:
    return list(items) if r.random() < chance else []


def _body(r: Random) -> Behaviour:
    ends = r.choice(("ok", "ok", "ok", "ok", "failed", "failed", "never"))
    error = r.choice(("boom", "boom", "it broke", "no room"))
    return Behaviour(
        takes=r.choice((0.0, 0.0, *TIMES)), ends=ends, error=error,
        permanent=ends == "failed" and r.random() < 0.1,
        retry_after=r.choice(TIMES) if ends == "failed" and r.random() < 0.1 else None,
        manners=r.choice(("at_once", "at_once", "at_once", "slow", "deaf", "on")),
        beats=r.choice((1.0, 3.0)) if r.random() < 0.4 else None,
        saves=r.random() < 0.1, child=r.random() < 0.05, asks=r.random() < 0.05,
    )  # fmt: skip


def _answer(r: Random, kind: str) -> Behaviour:
    ends = r.choice(("ok", "ok", "ok", "ok", "ok", "failed", "never"))
    if kind == "condition" and r.random() < 0.2:
        ends = "no"
    return Behaviour(takes=r.choice((0.0, 0.0, 1.0, 3.0)), ends=ends, manners=r.choice(("at_once", "at_once", "deaf")))
