"""Random flows under random faults, in virtual time: what DESIGN section 10 says of steps and messages holds in each.

A flow is drawn from its seed: a program of steps, loops, parallel steps, branches of a task group, sleeps, failures
that are caught and compensated, receives with and without a time limit, approvals, child jobs, messages to another
flow, time limits around several of these, races of two receives, and further rounds (`task.again`). That other flow
listens, and begins anew after every three messages. The runtime is killed between any two steps of the simulation, and
the code may have one step more, and another one less, from then on. Messages come at random, some of them twice under
one request id, from handles and through the inbox, also while no runtime lives; people decide approvals, pause and
cancel; the journal is slow, or fails, workers die. A flow that has ended may run again from one of its steps on, under
the same faults. The functions of the steps, and the body, look into the journal meanwhile. With every second seed the
steps have a tool, whose limit and breaker hold; with every third they run on a worker of their own, which dies, too.

One seed again, with its trace: `PYTHONPATH=src python -m tests.reliability.simulation.flows 42 43`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any

import anyio

from callboard import Breaker, Retry, Task, TaskContext, Tool, Worker, Workstream, step
from callboard.actors.records.step import StepRecord
from callboard.errors import ApprovalRejected, InvalidTransitionError, MessageInvalid, ReceiveTimeout
from callboard.runtime.testing.scripted import WORKERS
from callboard.testing import Simulation

SEEDS = 40
MOST = 2
"""Steps that may use the tool at a time."""
TOOLS = {"tool": Tool(max_parallel=MOST, breaker=Breaker(failure_threshold=2, cooldown=50.0))}
FAR = Worker("far", engine="loop", capacity=3, capabilities=["far"])
Program = list[list[Any]]
KINDS = (
    "step",
    "step",
    "gather",
    "sleep",
    "undo",
    "receive",
    "timely",
    "patient",
    "typed",
    "approval",
    "child",
    "send",
)
LIMITED = ("step", "gather", "sleep", "undo", "receive", "timely", "patient", "typed", "tried", "send")
"""What may be in a limit."""
IN_TIME, LATE = "in time", "late"
RECEIVES = ("receive", "timely", "patient", "typed")
NESTED = ("loop", "loop", "branches", "branches", "limit", "limit")
WAYS = ("fail", "move on", "timer")
"""How a body limits what it waits for."""
LIMITS = (1.0, 2.0, 3.0, 30.0, 4000.0)
"""Seconds, of which many are those that a step takes."""
LONG = 1_000
"""Rounds of faults, after which a flow that has not ended never will."""
total: Counter[str] = Counter()
"""What happened in all runs of this process."""


def make(r: Random, depth: int = 2, path: str = "", branch: str = "", kinds: Sequence[str] = KINDS) -> Program:
    """A random program. Each operation has a path of its own, which is the argument of its steps.

    branch: of a task group, whose receives take messages of names of their own: branches may exchange no others.
    kinds: of what it may do once.
    """
    made: Program = []
    for number in range(r.randint(1, 4)):
        kind, at = r.choice([*kinds, *(NESTED if depth else []), "race"]), f"{path}.{number}"
        more: Any = r.randint(2, 4)
        if kind == "sleep":
            more = r.choice((1.0, 40.0, 7200.0))
        elif kind in RECEIVES:
            more = [branch or r.choice("ab"), r.choice((30.0, 4000.0))]
        elif kind == "loop":
            more = make(r, depth - 1, at, branch, kinds)
        elif kind == "branches":
            more = [make(r, 0, f"{at}.{n}", f"of {at}.{n}", kinds) for n in range(r.randint(2, 3))]
        elif kind == "limit":
            more = [r.choice(WAYS), r.choice(LIMITS), make(r, depth - 1, at, branch, LIMITED)]
        elif kind == "race":
            more = [f"{branch} {name}" if branch else name for name in "ab"]
        made.append([kind, at, more])
    return made


def names_of(program: Program) -> Iterator[str]:
    """The names of the messages that a program receives."""
    for kind, _, more in program:
        if kind in RECEIVES:
            yield more[0]
        elif kind == "loop":
            yield from names_of(more)
        elif kind == "limit":
            yield from names_of(more[2])
        elif kind == "race":
            yield from more
        elif kind == "branches":
            for one in more:
                yield from names_of(one)


def expected(program: Program, turn: str = "") -> list[str]:
    """What the body of a program returns, but for the values of messages and the decisions about approvals."""
    seen: list[str] = []
    for kind, path, more in program:
        at = f"{path}{turn}"
        if kind in {"step", "tried", "child", "send", "approval", "limit", "race", *RECEIVES}:
            seen.append(at)
        elif kind == "gather":
            seen += (f"{at}:{n}" for n in range(more))
        elif kind == "undo":
            seen += (at, f"{at} undone")
        elif kind == "loop":
            seen += (one for number in range(1 + len(at) % 3) for one in expected(more, f"{turn}@{number}"))
        elif kind == "branches":
            seen += (one for branch in more for one in expected(branch, turn))
    return seen


@step
async def count(at: str) -> int:
    """How often a loop goes round."""
    return 1 + len(at) % 3


@step
async def decide(at: str) -> str:
    """What follows a decision."""
    return at


@step
async def fails(at: str) -> str:
    """A step that always fails."""
    raise ConnectionError(at)


async def listen(task: TaskContext) -> list[str]:
    """The body of the other flow: it receives until it is told to stop."""
    seen = task.args["seen"]
    for _ in range(3):
        if (word := await task.receive("news")) == "stop":
            return seen
        seen = [*seen, word]
    return task.again(seen=seen)


class Flow:
    """A program that runs in a simulation, and what its body and its steps have seen."""

    def __init__(self, sim: Simulation, program: Program, rounds: int, tool: str | None, *, far: bool) -> None:
        self.sim = sim
        self.tool = tool  # of its steps
        self.far = far  # its steps run on a worker of their own
        self.running: set[tuple[int, str]] = set()  # functions of steps that run: which start they are of, and where
        self.starts = 1
        self.program = program
        self.rounds = rounds
        self.longer = False  # the code has one more step at its beginning
        self.shorter = False  # it lacks the steps that nothing depends on
        self.places: dict[Any, str] = {}  # by the value of a message: where the body got it
        self.gone = set[Any]()  # values of messages whose receives a later run has dropped
        self.wrong: list[str] = []
        self.tries = Counter[str]()  # of steps that are tried again
        self.failed = set[str]()  # flaky steps that have failed: an attempt each

    # -- what the code of the flow sees --------------------------------------------------------------------------------

    def must(self, true: bool, wrong: str) -> None:
        """Note a violation: an error in the body would only fail the attempt, and be tried again."""
        if not true:
            self.wrong.append(wrong)

    def kept(self) -> list[str]:
        """The results of the steps that are durable and have completed."""
        rows = self.sim.job("j").task("t").steps()
        return [row.result for row in rows if row.state == "completed" and isinstance(row.result, str)]

    def present(self) -> list[StepRecord]:
        """The steps that are durable and were taken, or given up, in the present round."""
        task = self.sim.job("j").task("t")
        now = task.record.key, task.record.failed_attempts + task.record.deferrals
        return [row for row in task.steps() if (row.task, row.round) == now]

    def began(self, at: str) -> None:
        """The function of a step runs."""
        total["steps"] += 1
        self.must(at not in self.kept(), f"step {at} ran again, though it had completed")
        gone = [row.label for row in self.present() if row.given_up is not None and row.given == ([at], {})]
        self.must(not gone, f"step {at} ran again, though the body had given it up: {gone}")

    async def decided(self, task: TaskContext, at: str, decision: str) -> str:
        """The body has come to a decision by a limit, which is durable with the step after it."""
        total[f"limits: {decision}" if decision in {IN_TIME, LATE} else "races"] += 1
        await task.step(step(decide.func, name=f"decided {decision}"), at)
        made = {row.name for row in self.present() if row.name.startswith("decided ") and row.result == at}
        self.must(made <= {f"decided {decision}"}, f"decided at {at}: {made}, and in this replay {decision}")
        return f"{at}={decision}"

    def told(self, at: str) -> str:
        """The body has got a result."""
        self.must(at in self.kept(), f"the body got the result of {at}, which is not durable")
        return at

    def got(self, at: str, value: Any) -> str:
        """The body has received a message, or None."""
        if value is not None:
            total["received, replays included"] += 1
            found = [one for one in self.sim.world.journal.messages("j") if one.value == value]  # an int is no str
            states = [one.state for one in found]
            self.must(states == ["received"], f"the body got {value!r}, of which the journal has {states}")
            steps = [
                row.key for row in self.sim.job("j").task("t").steps() if row.message in {one.key for one in found}
            ]
            self.must(steps == [one.step for one in found], f"{value!r} is kept by the steps {steps}")
            self.must(self.places.setdefault(value, at) == at, f"{value!r} came at {self.places[value]} and at {at}")
            gone = [row.label for row in self.present() if row.message in {one.key for one in found} and row.given_up]
            self.must(not gone, f"the body got {value!r} by {gone}, which it had given up")
            self.must(value not in self.gone, f"{value!r} came again, after the receive of it was dropped")
        return f"{at}={value}"

    async def beside(self, task: TaskContext) -> list[Any]:
        """The body of another task of the same job, which receives some of the messages to the job."""
        values = []
        for number in range(2):
            values.append(value := await task.receive("a", timeout="2h", default=None))
            if value is not None:
                at = f"beside {number}"
                self.must(self.places.setdefault(value, at) == at, f"{value!r} came at {self.places[value]} and {at}")
        return values

    async def child(self, task: TaskContext) -> str:
        """The body of child jobs."""
        at: str = task.args["at"]
        record = self.sim.world.journal.job(task.job_id)
        state = "not durable" if record is None else str(record.state)
        self.must(state == "running", f"child {at} ran, and is {state}")
        await anyio.sleep(30.0)
        return at

    async def body(self, task: TaskContext) -> Any:
        """The body of the task."""

        @step(tool=self.tool, capabilities=["far"] if self.far else [])
        async def work(at: str) -> str:
            self.began(at)
            run = self.starts, at
            self.running.add(run)
            here = [one for start, one in self.running if start == self.starts]
            self.must(self.tool is None or len(here) <= MOST, f"these use the tool at the same time: {here}")
            try:
                await anyio.sleep(sum(map(ord, at)) % 4)  # so parallel steps end in another order than they began
            finally:
                self.running.discard(run)
            return at

        @step
        async def flaky(at: str) -> str:
            self.began(at)
            if at not in self.failed:
                self.failed.add(at)
                raise OSError(at)  # which fails the attempt
            return at

        @step(tool=self.tool, retry=Retry(max_attempts=3, base_delay=20.0, jitter=0.0))
        async def tried(at: str) -> str:
            self.began(at)
            self.tries[at] += 1
            if self.tries[at] < 3:
                raise OSError(at)  # the second wait before its next try is durable
            return at

        @step
        async def old(at: str) -> str:
            self.began(at)
            return at

        async def receive(kind: str, at: str, name: str, wait: float) -> str:
            if kind == "receive":
                return self.got(at, await task.receive(name))
            if kind == "timely":
                return self.got(at, await task.receive(name, timeout=wait, default=None))
            try:
                if kind == "patient":
                    return self.got(at, await task.receive(name, timeout=wait))
                return self.got(at, await task.receive(name, type=int))
            except ReceiveTimeout:
                return f"{at}=late"
            except MessageInvalid:
                return f"{at}=invalid"

        async def ask(kind: str, at: str) -> str:
            if kind == "flaky":
                return self.told(await flaky(at))
            if kind == "tried":
                return self.told(await tried(at))
            if kind == "child":
                child = await task.submit(
                    Workstream("c", tasks=[Task("c", run="child", args={"at": at})]), name=f"c{at}"
                )
                return str((await child.wait()).results["c"])
            if kind == "approval":
                try:
                    await task.approval(f"a{at}", expires="1000d")
                except ApprovalRejected:
                    return f"{at}=rejected"
                return f"{at}=approved"
            for number in range(3):
                await task.send("k", "news", f"{at}:{number}")
                self.sent(f"{at}:{number}")
            return at

        async def run(program: Program, turn: str = "") -> list[str]:  # noqa: PLR0912 - one for each kind
            seen: list[str] = []
            for kind, path, more in program:
                at = f"{path}{turn}"
                if kind == "step":
                    seen.append(self.told(await work(at)))
                    if not self.shorter:
                        await old(f"{at} old")
                elif kind == "gather":
                    seen += map(self.told, await task.gather(*(work.bind(f"{at}:{n}") for n in range(more))))
                elif kind == "sleep":
                    await task.sleep(more + len(at))
                elif kind == "undo":
                    seen.append(self.told(await work(at)))
                    try:
                        await task.step(step(fails.func, tool=self.tool), at)
                    except ConnectionError:
                        seen.append(self.told(await work(f"{at} undone")))
                elif kind == "loop":
                    for number in range(await count(at)):
                        seen += await run(more, f"{turn}@{number}")
                elif kind == "branches":
                    seen += await branches(more, turn)
                elif kind == "limit":
                    seen.append(await limit(at, *more, turn))
                elif kind == "race":
                    seen.append(await race(at, more))
                elif kind in RECEIVES:
                    seen.append(await receive(kind, at, *more))
                else:
                    seen.append(await ask(kind, at))
            return seen

        async def branches(programs: list[Program], turn: str) -> list[str]:
            out: dict[int, list[str]] = {}

            async def one(number: int, program: Program) -> None:
                out[number] = await run(program, turn)

            async with anyio.create_task_group() as group:
                for number, program in enumerate(programs):
                    group.start_soon(one, number, program)
            return [at for number in sorted(out) for at in out[number]]

        async def limit(at: str, way: str, seconds: float, program: Program, turn: str) -> str:
            seen: list[str] | None = None
            if way == "timer":
                async with anyio.create_task_group() as group:
                    group.start_soon(cancel, group.cancel_scope, seconds)
                    seen = await run(program, turn)
                    group.cancel_scope.cancel()
            else:
                with suppress(TimeoutError), (anyio.fail_after if way == "fail" else anyio.move_on_after)(seconds):
                    seen = await run(program, turn)
            return await self.decided(task, at, LATE if seen is None else IN_TIME)

        async def cancel(scope: anyio.CancelScope, seconds: float) -> None:
            await task.sleep(seconds)
            scope.cancel()

        async def race(at: str, names: list[str]) -> str:
            first: list[str] = []

            async def one(name: str) -> None:
                self.got(f"{at} {name}", await task.receive(name))
                first.append(name)
                group.cancel_scope.cancel()

            async with anyio.create_task_group() as group:
                for name in names:
                    group.start_soon(one, name)
            return await self.decided(task, at, " and ".join(sorted(first)))

        if self.longer:
            await task.step(step(count.func, name="added"), "added")
        number = task.args["round"]
        rounds = self.sim.job("j").task("t").record.rounds
        self.must(number == rounds, f"the body runs in round {number}, and the journal says {rounds}")
        if self.longer and await task.version("longer", 2) == 2:
            await task.step(step(count.func, name="only in new flows"), "new")
        seen = task.args["seen"] + await run(self.program, f"+{number}")
        return seen if number == self.rounds else task.again(round=number + 1, seen=seen)

    def sent(self, at: str) -> None:
        """The body has sent a message to the other flow."""
        found = [one for one in self.sim.world.journal.messages("k") if one.value == at]
        self.must(bool(found), f"the body has sent {at}, which is not durable")


class World:
    """One run: the flows, the people and the faults. r: of the faults."""

    def __init__(self, sim: Simulation, r: Random, tool: str | None, *, far: bool) -> None:
        self.sim = sim
        self.r = r
        self.flow = flow = Flow(sim, make(r), r.choice((0, 0, 1, 2)), tool, far=far)
        self.names = [*names_of(flow.program), "a", "other"]
        self.sent: dict[Any, str] = {}  # by the value of each message that was tried: its name
        self.acknowledged = set[Any]()
        self.put: dict[int, Any] = {}  # by the row in the inbox
        self.stopped = False  # a person has cancelled it
        self.retries = 0
        for name, body in (("body", flow.body), ("listen", listen), ("child", flow.child), ("beside", flow.beside)):
            sim.task(body, name=name)
        if r.random() < 0.3:
            sim.slow_journal(r.choice((0.5, 20.0)))
        args = {"round": 0, "seen": []}
        tries = Retry(max_attempts=1_000, base_delay="1m", max_delay="1m")
        task = Task("t", run="body", timeout="100d", max_losses=1_000, args=args, retry=tries, max_error_repeats=1_000)
        beside = Task("u", run="beside", timeout="100d", max_losses=1_000)
        other = Task("t", run="listen", timeout="1000d", max_losses=1_000, args={"seen": []})
        sim.submit(Workstream("other", tasks=[other]), id="k")
        sim.submit(Workstream("flow", tasks=[task, beside]), id="j")
        total["flows"] += 1

    # -- people and faults ---------------------------------------------------------------------------------------------

    def send(self, name: str) -> None:
        """Send a message of a value that no other has, by a handle or through the inbox, perhaps twice."""
        r, sim = self.r, self.sim
        number = len(self.sent)
        value: Any = number if r.random() < 0.5 else f"m{number}"
        key = f"key {number}" if r.random() < 0.5 else None
        self.sent[value] = name
        for _ in range(1 if key is None else r.randint(1, 3)):
            if r.random() < 0.5:
                row = sim.put("send", *r.choice((("job", "j"), ("task", "j/t"))) if key is None else ("job", "j"),
                              request_id=key, name=name, value=value)  # fmt: skip
                self.put[row] = value
            else:
                with suppress(InvalidTransitionError):
                    sim.job("j").send(name, value, request_id=key)
                    self.acknowledged.add(value)

    def decide(self, *, surely: bool = False) -> None:
        """Decide about the approvals that wait."""
        for one in self.sim.runtime.approvals():
            if one.approval is not None and (surely or self.r.random() < 0.5):
                task = self.sim.job("j").task("t")
                with suppress(InvalidTransitionError):
                    decided = task.reject if self.r.random() < 0.3 else task.approve
                    decided(by="ana", approval=one.approval)

    def disturb(self) -> None:
        """Let one thing happen."""
        sim, r = self.sim, self.r
        roll = r.random()
        if roll < 0.45:
            self.send(r.choice(self.names))
        elif roll < 0.55:
            self.decide()
        elif roll < 0.6:
            with suppress(InvalidTransitionError):
                sim.job("j").pause()
        elif roll < 0.65:
            self.resume()
        elif roll < 0.7:
            with suppress(LookupError):  # it has died before
                sim.worker(r.choice(("loop", "far")) if self.flow.far else "loop").die()
                self.flow.starts += 1  # here its bodies go on for a while
        elif roll < 0.75:
            sim.fail_journal(lasts=r.choice((1.0, 30.0)))
        elif roll < 0.8:
            with suppress(InvalidTransitionError):
                sim.job("k").send("news", f"from outside {r.random()}")
        elif roll < 0.81 and not self.stopped and not sim.job("j").ended:
            self.stopped = True
            sim.job("j").cancel()

    def resume(self) -> None:
        """Resume the job, if it is paused. One that was cancelled has a further run, in which limits decide anew."""
        if self.sim.job("j").ended and self.has_decided():
            return
        with suppress(InvalidTransitionError):
            self.sim.job("j").resume()

    def has_decided(self) -> bool:
        """Whether the flow has come to a decision by a limit."""
        return any(row.name.startswith("decided ") for row in self.sim.job("j").task("t").steps())

    def disorder(self, crashes: int) -> None:
        """Faults and commands of people, between which the flow goes on."""
        sim, r = self.sim, self.r
        for _ in range(crashes):
            for _ in range(r.choice((1, 2, 5, 13, 40))):
                if r.random() < 0.15:
                    self.disturb()
                if not sim.step():
                    sim.advance(r.choice((1.0, 30.0, 4000.0)))
            if r.random() < 0.5:
                self.await_sent()
            if r.random() < 0.2:  # a message is sent while no runtime lives
                sim.crash(restart=False)
                value = f"away {len(self.sent)}"
                self.sent[value] = name = r.choice(self.names)
                self.put[sim.put("send", "job", "j", name=name, value=value, ring=False)] = value
                sim.restart()
            else:
                sim.crash(down=r.choice((0.0, 0.0, 50.0)))
            total["kills"] += 1
            self.flow.starts += 1
            self.flow.longer = self.flow.longer or r.random() < 0.3
            self.flow.shorter = self.flow.shorter or r.random() < 0.2

    def await_sent(self) -> None:
        """Go on to a moment at which a message to the other flow is durable, and the step that sends it not yet."""
        messages = self.sim.world.journal.messages
        there = len(messages("k"))
        with suppress(AssertionError):  # none is sent
            self.sim.run_until(lambda: len(messages("k")) > there, within="3h")

    def end(self) -> None:
        """Let the faults end, and give the flow what it waits for until it ends."""
        sim = self.sim
        sim.mend_journal()
        sim.slow_journal(0.0)
        sim.advance(100.0)
        self.resume()
        for _ in range(LONG):
            if sim.job("j").ended:
                return
            for name in [one.awaits for task in "tu" for one in sim.job("j").task(task).steps() if one.awaits]:
                self.send(name)
            self.decide(surely=True)
            sim.advance(4000.0)
        raise AssertionError(f"the flow does not end: {sim.job('j').task('t').record}")

    # -- the invariants ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Check all invariants of a flow that has ended."""
        sim, flow = self.sim, self.flow
        assert flow.wrong == []
        sim.check()
        outcome, record = sim.job("j").run(), sim.job("j").task("t").record
        if not (self.stopped and outcome.state == "cancelled"):
            assert outcome.ok, f"{outcome.error}: {outcome.tracebacks}"
            result: list[str] = outcome.results["t"]
            wanted = [at for number in range(flow.rounds + 1) for at in expected(flow.program, f"+{number}")]
            assert [at.partition("=")[0] for at in result] == wanted
            assert record.rounds == flow.rounds
            rows = sim.job("j").task("t").steps()
            for name in {row.name for row in rows} if not self.has_decided() else ():  # else calls are not made again
                numbers = sorted(row.number for row in rows if row.name == name)
                assert numbers == list(range(1, len(numbers) + 1)), f"the numbers of {name} have gaps: {numbers}"
        self.check_messages()
        self.check_tools()
        self.check_workers()

    def check_workers(self) -> None:
        """No step runs on a worker any more, or waits for one."""
        kernel = self.sim.runtime.host.kernel
        assert not kernel.step_calls, f"steps still run on workers: {kernel.step_calls}"
        assert not any(slot.kind == "step" for slot in kernel.slots.values()), f"slots are left: {kernel.slots}"
        total["steps on workers"] += sum(row.engine is not None for row in self.sim.job("j").task("t").steps())

    def check_tools(self) -> None:
        """No step uses a tool any more, or has the permit to probe it."""
        workforce = self.sim.runtime.host.workforce
        used = {name: gate.used for name, gate in workforce.scheduler.tools.items()}
        assert not workforce.kernel.uses, f"steps still use tools: {workforce.kernel.uses}"
        assert not any(used.values()), f"units of tools are left: {used}"
        assert all(breaker.record.probe is None for breaker in workforce.breakers.values()), "a permit is left"

    def check_messages(self) -> None:
        """Each message that was acknowledged is there once, those of one name were received in their order."""
        journal = self.sim.world.journal
        for row, value in self.put.items():
            answer = self.sim.answer(row)
            if answer is not None and '"error"' not in answer and "InvalidTransition" not in answer:
                self.acknowledged.add(value)
        there = Counter(one.value for one in journal.messages("j"))
        assert max(there.values(), default=1) == 1, f"sent twice: {there.most_common(3)}"
        assert self.acknowledged <= there.keys(), f"lost: {self.acknowledged - there.keys()}"
        assert there.keys() <= self.sent.keys()
        other = Counter(one.value for one in journal.messages("k"))
        assert self.retries or max(other.values(), default=1) == 1, f"the flow has sent twice: {other.most_common(3)}"
        total["messages"] += len(there)

    def from_step(self) -> None:
        """Run the flow again from one of its steps on."""
        sim, flow = self.sim, self.flow
        rows = sim.job("j").task("t").steps()
        decided = self.has_decided()  # the next run may decide otherwise
        anew = (row.key for row in rows if decided and (row.given_up is not None or row.failed))
        first = min(anew, default=sys.maxsize)
        rows = [row for row in rows if row.key <= first and not row.name.startswith("task.version")]
        if not rows:
            return
        sim.job("j").retry("t", from_step=self.r.choice(rows).label)
        left = {row.key for row in sim.job("j").task("t").steps()}
        for one in sim.world.journal.messages("j"):
            if one.state == "received" and one.step not in left:
                flow.gone.add(one.value)
        self.retries += 1
        total["runs from a step on"] += 1
        self.stopped = False

    def stop_listening(self) -> None:
        """End the other flow, and check that it has received exactly the sent messages."""
        sim = self.sim
        sim.job("k").send("news", "stop")
        seen: list[str] = sim.job("k").run(within="10d").results["t"]
        there = [one.value for one in sim.world.journal.messages("k")]
        assert there == [*seen, "stop"]
        sim.check()


def carry_out(seed: int) -> tuple[list[str], str]:
    """Run a seed; returns the result of its flow, and a digest of its trace."""
    r = Random(f"flows/{seed}")
    far = not seed % 3
    with Simulation(seed, tools=TOOLS, workers=(*WORKERS, FAR) if far else WORKERS) as sim:
        world = World(sim, r, "tool" if seed % 2 else None, far=far)
        world.disorder(r.randint(0, 8))
        world.end()
        world.check()
        if r.random() < 0.5:
            world.from_step()
            world.disorder(r.randint(0, 3))
            world.end()
            world.check()
        world.stop_listening()
        return sim.job("j").run().results.get("t", []), sim.trace.digest()


def find(seed: int) -> str:
    """The findings in the run of a seed; empty if there are none."""
    try:
        carry_out(seed)
    except Exception as error:
        return f"seed {seed}: {type(error).__name__}: {error}"
    return ""


if __name__ == "__main__":  # the seeds from one number to another, until something is found
    wrong = next(filter(None, map(find, range(int(sys.argv[1]), int(sys.argv[2])))), "")
    print(wrong or ", ".join(f"{name}: {number:,}" for name, number in total.items()))
    raise SystemExit(bool(wrong))
