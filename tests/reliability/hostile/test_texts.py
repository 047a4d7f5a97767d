"""Arguments that are no text where a text is expected: each public function refuses them with a clear message.

Callboard must not use such an object in any way: every operation on it may raise, and on the event loop such an error
once ended the runtime.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import anyio
import pytest
from tests.reliability.hostile import guests

from callboard import (
    Approval,
    BreakerHandle,
    Fire,
    JobHandle,
    MachineActor,
    MachineRef,
    Runtime,
    Task,
    TaskContext,
    TaskHandle,
    Worker,
    WorkerHandle,
    Workstream,
)
from callboard.actors.users.actor import Actor
from callboard.errors import SpecificationError
from callboard.machines.lifecycles.execution import EXECUTION

pytestmark = [pytest.mark.anyio, pytest.mark.laboratory]


class NoText(guests.NoTruth):
    """An object whose every operation raises."""

    def __eq__(self, other: object) -> bool:
        raise guests.Bare("in __eq__")

    __hash__ = None  # type: ignore[assignment]

    def __fspath__(self) -> str:
        raise guests.Bare("in __fspath__")


NO_TEXTS: dict[str, Callable[[], Any]] = {
    "number": lambda: 5,
    "bytes": lambda: b"a",
    "no_text": NoText,
    "no_truth": guests.NoTruth,
    "masked": guests.Masked,
    "endless_list": guests.EndlessList,
    "an_error": guests.NoText,
}


class Idle(Actor):
    def receive(self, message: Any, ctx: Any) -> None:
        """Ignore the message."""


def work() -> int:
    return 1


async def endless() -> None:
    await anyio.sleep_forever()


class Everything:
    """A runtime with one of everything."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime
        self.job: JobHandle
        self.task: TaskHandle
        self.worker: WorkerHandle
        self.breaker: BreakerHandle
        self.machine: MachineRef

    async def set(self) -> None:
        held = Task("b", run=work, hold=Approval(people=2))
        asked = Workstream("w", tasks=[Task("a", run=endless, tool="t"), held])
        self.job = await self.runtime.submit(asked, id="j")
        self.task = self.job.task("b")
        self.worker = self.runtime.workers()[0]
        self.breaker = self.runtime.breaker("t")
        self.machine = await self.runtime.spawn(MachineActor(EXECUTION), name="m")


Say = Callable[[Everything, Any], Any]
SAID: dict[str, Say] = {
    "Runtime.task(name)": lambda on, text: on.runtime.task(work, name=text),
    "Runtime.task(aliases)": lambda on, text: on.runtime.task(work, aliases=[text]),
    "Runtime.submit(id)": lambda on, text: on.runtime.submit(Workstream("w", tasks=[Task("a", run=work)]), id=text),
    "Runtime.submit(by)": lambda on, text: on.runtime.submit(Workstream("w", tasks=[Task("a", run=work)]), by=text),
    "Runtime.submit(request_id)": lambda on, text: on.runtime.submit(
        Workstream("w", tasks=[Task("a", run=work)]), request_id=text
    ),
    "Runtime.kept_notices(about)": lambda on, text: on.runtime.kept_notices(about=text),
    "MachineRef.fire(by)": lambda on, text: on.machine.fire("ENQUEUE", by=text),
    "Fire(by)": lambda on, text: Fire("ENQUEUE", by=text),
    "JobHandle.ref.tell(message)": lambda on, text: on.job.ref.tell(text),
    "JobHandle.ref.ask(message)": lambda on, text: on.job.ref.ask(text),
    "TaskHandle.ref.ask(facts)": lambda on, text: on.task.ref.ask(Fire("approve", by="ana", facts={"approval": text})),
    "Runtime.job(job_id)": lambda on, text: on.runtime.job(text),
    "Runtime.worker(name)": lambda on, text: on.runtime.worker(text),
    "Runtime.breaker(tool)": lambda on, text: on.runtime.breaker(text),
    "Runtime.start_worker(reason)": lambda on, text: on.runtime.start_worker(Worker("x"), reason=text),
    "Runtime.start_worker(by)": lambda on, text: on.runtime.start_worker(Worker("x"), by=text),
    "Runtime.start_worker(request_id)": lambda on, text: on.runtime.start_worker(Worker("x"), request_id=text),
    "Runtime.spawn(name)": lambda on, text: on.runtime.spawn(Idle, name=text),
    "Runtime.spawn(name) of a machine": lambda on, text: on.runtime.spawn(MachineActor(EXECUTION), name=text),
    "Runtime.machine(name)": lambda on, text: on.runtime.machine(text),
    "Runtime.machine_of(name)": lambda on, text: on.runtime.machine_of(text),
    "Runtime.events(filters)": lambda on, text: on.runtime.events(job=text),
    "JobHandle.events(filters)": lambda on, text: on.job.events(task=[text]),
    "JobHandle.task(name)": lambda on, text: on.job.task(text),
    "JobHandle.task(name).record": lambda on, text: on.job.task(text).record,
    "JobHandle.output(name)": lambda on, text: on.job.output(text),
    "JobHandle.attempts(task)": lambda on, text: on.job.attempts(text),
    "JobHandle.steps(task)": lambda on, text: on.job.steps(text),
    "JobHandle.progress(name)": lambda on, text: on.job.progress(text),
    "JobHandle.send(name)": lambda on, text: on.job.send(text),
    "JobHandle.send(task)": lambda on, text: on.job.send("paid", task=text),
    "TaskHandle.send(name)": lambda on, text: on.task.send(text),
    "JobHandle.retry(task)": lambda on, text: on.job.retry(text),
    "JobHandle.retry(from_step)": lambda on, text: on.job.retry(on.task.name, from_step=text),
    "TaskHandle.retry(from_step)": lambda on, text: on.task.retry(from_step=text),
    "JobHandle.skip(task)": lambda on, text: on.job.skip(text),
    "TaskHandle.approve(approval)": lambda on, text: on.task.approve(by="ana", approval=text),
    "TaskHandle.reject(approval)": lambda on, text: on.task.reject(by="ana", approval=text),
    "BreakerHandle.reset(check)": lambda on, text: on.breaker.reset(check=[text]),
    "MachineRef.fire(event)": lambda on, text: on.machine.fire(text),
    "MachineRef.fire(metadata)": lambda on, text: on.machine.fire("ENQUEUE", metadata=text),
    "MachineRef.fire(facts)": lambda on, text: on.machine.fire("ENQUEUE", facts=text),
    "MachineRef.ask(message)": lambda on, text: on.machine.ask(text),
    "MachineRef.tell(message)": lambda on, text: on.machine.tell(text),
    "Fire(event)": lambda on, text: Fire(text),
    "Fire(reason)": lambda on, text: Fire("ENQUEUE", reason=text),
    "Fire(request_id)": lambda on, text: Fire("ENQUEUE", request_id=text),
    "Runtime(journal)": lambda on, text: Runtime(text),
    "Runtime(jsonl)": lambda on, text: Runtime(jsonl=text),
    "Runtime(outputs)": lambda on, text: Runtime(outputs=text),
    "Runtime(node)": lambda on, text: Runtime("postgresql:///x", node=text),
    "Runtime(lifecycle)": lambda on, text: Runtime(lifecycle=text).submit(Workstream("w", tasks=[])),
}


def said_by_all(handle: str, of: str, verb: str, words: tuple[str, ...]) -> None:
    """Add a call for each of these text arguments of a verb; `approve` and `reject` also need `by`."""
    for word in words:

        def say(on: Everything, text: Any, word: str = word) -> Any:
            given = {"by": "ana"} if verb in {"approve", "reject"} else {}
            return getattr(getattr(on, of), verb)(**{**given, word: text})

        SAID[f"{handle}.{verb}({word})"] = say


for _verb in ("cancel", "pause", "resume", "retry", "skip", "approve", "reject"):
    if _verb != "skip":
        said_by_all("JobHandle", "job", _verb, ("reason", "by", "request_id"))
    if _verb not in {"pause", "resume"}:
        said_by_all("TaskHandle", "task", _verb, ("reason", "by", "request_id"))
said_by_all("TaskHandle", "task", "reset", ("reason", "by", "request_id"))
for _verb in ("pause", "resume", "shut_down", "terminate", "start"):
    said_by_all("WorkerHandle", "worker", _verb, ("reason", "by", "request_id"))
for _verb in ("reset", "trip"):
    said_by_all("BreakerHandle", "breaker", _verb, ("reason", "by", "request_id"))
for _word in ("by", "request_id"):
    SAID[f"JobHandle.send({_word})"] = lambda on, text, word=_word: on.job.send("n", **{word: text})
    SAID[f"TaskHandle.send({_word})"] = lambda on, text, word=_word: on.task.send("n", **{word: text})
for _word in ("reason", "by", "request_id"):
    SAID[f"JobHandle.skip({_word})"] = lambda on, text, word=_word: on.job.skip("b", **{word: text})
for _word in ("reason", "request_id"):
    said_by_all("MachineRef", "machine", "fire", ())
    SAID[f"MachineRef.fire({_word})"] = lambda on, text, word=_word: on.machine.fire("ENQUEUE", **{word: text})
# A specification is read when it is submitted.
for _field in ("name", "run", "command", "env", "cwd", "tool", "timeout", "args", "depends_on", "engine", "secrets",
               "capabilities", "wait"):  # fmt: skip
    SAID[f"Task({_field})"] = lambda on, text, field=_field: on.runtime.submit(
        Workstream("w", tasks=[Task(**{"name": "a", "command": ["true"], field: text})])
    )
for _field in ("name", "tasks", "cwd", "defaults", "tools", "lifecycle", "deadline", "on_completed"):
    SAID[f"Workstream({_field})"] = lambda on, text, field=_field: on.runtime.submit(
        Workstream(**{"name": "w", "tasks": [Task("a", run=work)], field: text})
    )
for _field in ("name", "engine", "capacity", "capabilities", "lifecycle"):
    SAID[f"Worker({_field})"] = lambda on, text, field=_field: on.runtime.start_worker(
        Worker(**{"name": "x", "engine": "thread", field: text})
    )

RIGHT = {  # the allowed types
    ("Worker(capacity)", "number"), ("Task(timeout)", "number"), ("Task(wait)", "number"),
    ("Workstream(deadline)", "number"),
}  # fmt: skip
AT_HEART = "endless_list"  # counts as an empty list, whatever its methods return


async def raised(say: Callable[[], Any]) -> BaseException | None:
    """Return the error that `say` raises, of any kind; None if it raises none."""
    try:
        answer = say()
        if inspect.isawaitable(answer):
            await answer
    except BaseException as error:
        return error
    return None


@pytest.mark.parametrize("said", SAID)
async def test_what_is_no_text_is_refused_by_whoever_is_given_it(said: str) -> None:
    """One runtime refuses all of them, since what is refused changes nothing; that which may be taken comes last."""
    with anyio.fail_after(300):
        async with Runtime(drain_deadline=0) as runtime:
            scene = Everything(runtime)
            await scene.set()
            for what in sorted(NO_TEXTS, key=lambda what: what == AT_HEART):
                if (said, what) in RIGHT:
                    continue
                refused = await raised(lambda what=what: SAID[said](scene, NO_TEXTS[what]()))
                if what == AT_HEART and refused is None:
                    break
                assert issubclass(type(refused), TypeError | SpecificationError), (what, type(refused))
                assert len(str(refused)) < 2_000, what
                assert runtime.health.ok, what
            again = await runtime.submit(Workstream("after", tasks=[Task("a", run=work)]))
            assert (await again.wait()).ok


async def test_a_body_is_refused_so_too() -> None:
    seen: list[str] = []

    async def emits(task: TaskContext, text: Any) -> None:
        task.emit(text)

    async def shows(task: TaskContext, text: Any) -> None:
        task.progress(1, 2, text)

    async def body(task: TaskContext) -> None:
        for make in NO_TEXTS.values():
            for ask in (
                lambda text: task.submit(Workstream("w", tasks=[Task("a", run=work)]), name=text),
                lambda text: task.approval(text, people=1),
                task.receive,
                lambda text: task.send(text, "n"),
                lambda text: task.send("j", text),
                lambda text: task.send("j", "n", task=text),
                lambda text: task.publish(text, 1),
                lambda text: emits(task, text),
                lambda text: shows(task, text),
            ):
                try:
                    await ask(make())
                except TypeError as error:
                    seen.append(str(error))

    async with Runtime() as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=body)]))
        assert (await job.wait()).ok
    assert len(seen) == 9 * len(NO_TEXTS)


def test_each_public_function_that_takes_a_text_is_in_the_table() -> None:
    """A new function has to be added to the table."""
    internal = {
        "command",
        "input",
        "living",
        "ended",
        "check_here",
        "record_of",
        "reference",
    }  # of other functions, the docstring says that they are internal
    missing = []
    for kind in (Runtime, JobHandle, TaskHandle, WorkerHandle, BreakerHandle, MachineRef):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or name in internal or (method.__doc__ or "").startswith("For "):
                continue
            for parameter in inspect.signature(method).parameters.values():
                texts = str(parameter.annotation) in {"str", "str | None"}
                if texts and f"{kind.__name__}.{name}({parameter.name})" not in SAID:
                    missing.append(f"{kind.__name__}.{name}({parameter.name})")
    assert not missing
