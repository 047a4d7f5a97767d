"""Functions by name: the name that is journaled for each kind of function, and how a restart finds it."""

import functools
import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
import tenacity
from tests.waiting import LONGEST

from callboard import Clause, Fire, Machine, MachineActor, Runtime, State, TaskContext, Transition
from callboard.actors.spec.lifecycles import Lifecycles
from callboard.actors.spec.model import Check, Condition, Defaults, Hook, Retry, Task, Tool, Workstream
from callboard.actors.spec.validate import SpecificationError
from callboard.errors import JobExists
from callboard.runtime.functions.registry import (
    LARGE,
    Bodies,
    BodyNotFound,
    NoPath,
    look_in,
    path_of,
    prepare,
    prepared,
)


def build() -> None: ...


async def wait(task: Any) -> None: ...


def two(a: Any, b: Any) -> None: ...


class Jobs:
    @staticmethod
    def static() -> None: ...

    @classmethod
    def klass(cls) -> None: ...

    def method(self, task: Any) -> None: ...


HERE = __name__
decorated = functools.lru_cache(build)
hidden = build


def local() -> Any:
    def inner() -> None: ...

    return inner


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    before, modules = list(sys.path), set(sys.modules)
    yield tmp_path
    sys.path[:] = before
    for name in set(sys.modules) - modules:
        del sys.modules[name]


@pytest.mark.parametrize("func", [build, wait, Jobs.static, Jobs.klass, len, Jobs])
def test_a_path_leads_back(func: Any) -> None:
    path = path_of(func)
    assert path == f"{func.__module__}:{func.__qualname__}"
    assert Bodies().resolve(path) == func


@pytest.mark.parametrize(
    ("func", "words"),
    [
        (lambda: None, "a lambda cannot be found again"),
        (local(), "made inside a function"),
        (functools.partial(build), "no name of its own"),
        (Jobs().method, "would find something else"),
        (functools.wraps(build)(lambda: None), "would find something else"),
    ],
)
def test_functions_without_a_path(func: Any, words: str) -> None:
    with pytest.raises(NoPath, match=words):
        path_of(func)
    bodies = Bodies()
    with pytest.raises(NoPath, match=r"register it \(@runtime.task\)"):
        bodies.name_of(func, durable=True)
    name = bodies.name_of(func, durable=False)
    assert bodies.resolve(name) is func
    assert ":" not in name


def test_registered_functions() -> None:
    bodies = Bodies()
    func = local()
    assert bodies.register(func) is func
    bodies.register(build, "make it")
    bodies.register(build, "make it")
    assert bodies.name_of(func, durable=True) == "inner"
    assert bodies.name_of(build, durable=True) == "make it"
    assert bodies.resolve("make it") is build
    for name in ("a:b", "a#1", "inner"):
        with pytest.raises(ValueError, match=r"another name|cannot be"):
            bodies.register(two, name)
    with pytest.raises(BodyNotFound, match="did you mean 'make it'"):
        bodies.resolve("makeit")


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (
            "no_such.module:f",
            "there is no module 'no_such'; install it, or name its folder in PYTHONPATH, or put it beside",
        ),
        ("os.no_such:f", "there is no module 'os.no_such'"),
        ("os:pathh.join", r"there is no 'pathh' in module 'os'; did you mean 'path'\?"),
        ("os:path.xyzzy", "there is no 'xyzzy' in module 'posixpath'"),
        ("os:sep", "is no function, but '/'"),
        ("broken:f", "'broken' cannot be imported: ZeroDivisionError"),
        ("wrong:f", "'wrong' cannot be imported: SyntaxError"),
        ("quits:f", "'quits' cannot be imported: SystemExit"),
        ("needs:f", "'needs' imports 'not_installed', which cannot be found"),
    ],
)
def test_paths_that_lead_nowhere(folder: Path, path: str, words: str) -> None:
    (folder / "broken.py").write_text("1 / 0")
    (folder / "wrong.py").write_text("def")
    (folder / "quits.py").write_text("raise SystemExit(3)")
    (folder / "needs.py").write_text("import not_installed")
    look_in(str(folder))
    with pytest.raises(BodyNotFound, match=words):
        Bodies().resolve(path)


def everywhere(func: Any, wait: Any = None) -> Workstream:
    return Workstream(
        "w",
        tasks=[
            Task("plain", command=["x"]),
            Task(
                "all",
                run=func,
                condition=Condition(run=func),
                retry=Retry(wait=wait),
                checks=[Check(file="x"), Check(run=func)],
                on_completed=[Hook(run=func)],
                on_failed=[Hook(run=func)],
                on_cancelled=[Hook(run=func)],
            ),
        ],
        checks=[Check(run=func)],
        on_completed=[Hook(command=["x"]), Hook(run=func)],
        defaults=Defaults(retry=Retry(wait=wait)),
        tools={"t": Tool(retry=Retry(wait=wait))},
    )


def test_every_function_of_a_workstream_becomes_a_name() -> None:
    ready = prepare(everywhere(build, tenacity.wait_fixed(3)), Bodies(), durable=True)
    assert ready == everywhere(f"{HERE}:build", {"strategy": "wait_fixed", "wait": 3})
    assert prepare(ready, Bodies(), durable=True) == ready


def test_a_volatile_journal_keeps_what_has_no_path_until_the_end() -> None:
    bodies = Bodies()
    func = local()
    one = prepare(everywhere(func), bodies, durable=False)
    two = prepare(everywhere(func, func), bodies, durable=False)
    name = one.tasks[1].run
    assert two.tasks[1].run == name
    bodies.release(one)
    assert bodies.resolve(name) is func
    bodies.release(two)
    with pytest.raises(BodyNotFound):
        bodies.resolve(name)
    assert bodies.name_of(func, durable=False) != name


def test_a_durable_journal_refuses_what_has_no_path_with_everything_else() -> None:
    stream = Workstream(
        "w", tasks=[Task("a", run=lambda: None), Task("b", run=two), Task("c", run="os:sep"), Task("d")]
    )
    with pytest.raises(SpecificationError) as caught:
        prepare(stream, Bodies(), durable=True)
    assert {finding.where for finding in caught.value.findings} == {
        "tasks[0].run",
        "tasks[1].run",
        "tasks[2].run",
        "tasks[3]",
    }
    assert "wants a, b" in str(caught.value)
    with pytest.raises(SpecificationError, match="wants a, b"):
        prepare(Workstream("w", tasks=[Task("a", run=f"{HERE}:two")]), Bodies(), durable=True)


def test_rubbish_is_refused_not_stumbled_over() -> None:
    with pytest.raises(SpecificationError):
        prepare(Workstream(5, tasks=7, folder=3, tools=[]), Bodies(), durable=True)  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_a_wait_may_be_any_function_that_a_body_may_be(anyio_backend: Any) -> None:
    asked: list[int] = []

    def flaky(task: TaskContext) -> int:
        if task.attempt < 3:
            raise ValueError("not yet")
        return task.attempt

    async with Runtime() as runtime:

        @runtime.task
        def soon(n: int) -> float:
            asked.append(n)
            return 0

        for wait in ("soon", soon, lambda n: soon(n)):  # noqa: PLW0108 - a function without a name is meant
            retry = Retry(max_attempts=3, wait=wait)
            job = await runtime.submit(Workstream("w", tasks=[Task("a", run=flaky, retry=retry)]))
            assert (await job.wait()).results == {"a": 3}
    assert asked == [1, 2] * 3


def test_modules_beside_the_file_are_found(folder: Path) -> None:
    (folder / "beside_it.py").write_text("def go(): ...")
    stream = Workstream("w", tasks=[Task("a", run="beside_it:go")], folder=str(folder))
    assert prepare(stream, Bodies(), durable=True).tasks[0].run == f"beside_it@{folder}:go"


def test_functions_of_the_program_itself(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(
        "from callboard.runtime.functions.registry import LARGE, Bodies, path_of\n"
        "def go(): return 'here'\n"
        "print(path_of(go), Bodies().resolve(path_of(go))())\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True, env={"PYTHONPATH": "src"}
    )
    assert done.stdout == f"__main__@{script}:go here\n"


@pytest.mark.anyio
@pytest.mark.parametrize(("tasks", "beside"), [(LARGE, False), (LARGE + 1, True)])
async def test_a_large_workstream_is_checked_beside_the_event_loop(tasks: int, beside: bool) -> None:
    looked_in: set[int] = set()

    class Watched(Bodies):
        def callable_body(self, name: str) -> Any:
            looked_in.add(threading.get_ident())
            return super().callable_body(name)

    many = Workstream("many", tasks=[Task(f"t{number}", run=f"{HERE}:build") for number in range(tasks)])
    ready, encoded = await prepared(many, Watched(), durable=True, lifecycles=Lifecycles())
    assert (looked_in != {threading.get_ident()}) is beside
    assert msgspec.json.decode(encoded, type=Workstream) == ready
    assert len(ready.tasks) == tasks


@pytest.mark.anyio
async def test_what_is_wrong_with_a_large_workstream_is_told_as_of_a_small_one() -> None:
    many = Workstream("many", tasks=[Task(f"t{number}", run=f"{HERE}:build") for number in range(LARGE)])
    many.tasks.append(Task("t0", run=f"{HERE}:build"))
    with pytest.raises(SpecificationError, match="t0"):
        await prepared(many, Bodies(), durable=True, lifecycles=Lifecycles())


@pytest.mark.anyio
async def test_in_memory_nothing_is_kept_of_what_was_refused_joined_or_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("callboard.actors.machines.entity.KEPT", 10)  # ended ones that stay at hand
    monkeypatch.setattr("callboard.runtime.handles.machines._CACHED", 16)  # checked kinds that stay at hand

    def fresh() -> Any:
        return lambda: 1

    def workstream(run: Any, **more: Any) -> Workstream:
        return Workstream("w", tasks=[Task("a", run=run)], on_completed=[Hook(run=fresh())], **more)

    async def parent(task: TaskContext) -> None:
        child = await task.submit(workstream(fresh()), name="child")
        await child.wait()
        await task.submit(workstream(fresh()), name="child")  # it has completed: the same
        with pytest.raises(JobExists):
            await task.submit(workstream(fresh(), checks=[Check(run=fresh())]), name="child")
        with anyio.move_on_after(0):
            await task.approval("a", clauses=[Clause(team="t", members=fresh())])
        with pytest.raises(SpecificationError):
            await task.approval("b", clauses=[Clause(team="t", members=fresh()), Clause()])

    machine = Machine(
        "lamp", "on", [State("on", bounded_by="us"), State("off", terminal=True)],
        [Transition("on", "break", "off")],
    )  # fmt: skip
    with anyio.fail_after(LONGEST):
        async with Runtime() as runtime:
            same = workstream(fresh())
            job = await runtime.submit(same, id="one")
            await job.wait()
            before = len(runtime._services.bodies._local)
            for _ in range(10):
                with pytest.raises(JobExists):
                    await runtime.submit(workstream(fresh()), id="one")
                with pytest.raises(SpecificationError):
                    await runtime.submit(workstream(fresh(), max_parallel=0))
                with pytest.raises(SpecificationError):
                    runtime.spawn(MachineActor(machine, on_enter={"on": fresh(), "no": fresh()}), name="no")
                await (await runtime.submit(workstream(fresh()))).wait()
                assert (await (await runtime.submit(Workstream("p", tasks=[Task("p", run=parent)]))).wait()).results
            for number in range(60):
                lamp = runtime.spawn(MachineActor(machine, on_exit={"on": fresh()}), name=f"lamp-{number}")
                await lamp.ask(Fire("break"))
            gc.collect()
            await (await runtime.submit(workstream(fresh()))).wait()
            await anyio.lowlevel.checkpoint()
            bodies = runtime._services.bodies
            assert len(bodies._local) <= before + 16 + 20  # those of the machines that were spawned last
            assert len(bodies._local) == len(bodies._holds) == len(bodies._names)
