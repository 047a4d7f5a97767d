"""A workstream under an id that was used before: which ones are equal, and the message about a different one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from callboard import Runtime, TaskContext
from callboard.actors.spec.model import (
    Approval,
    Breaker,
    Check,
    Clause,
    Condition,
    Defaults,
    Hook,
    Retry,
    Task,
    Tool,
    Workstream,
)
from callboard.errors import JobExists
from callboard.runtime.jobs.difference import difference

W = Workstream


def weigh() -> int:
    return 1


def of(**more: Any) -> W:
    """A workstream of one task."""
    return W("w", tasks=[Task("a", run="m:f", **more)])


def deep(value: object) -> object:
    for _ in range(200):
        value = {"k": [value]}
    return value


@pytest.mark.parametrize(
    ("before", "now", "told"),
    [
        (W("w"), W("v"), "its name was 'w' and is 'v' now"),
        (of(), W("w", tasks=[*of().tasks, Task("b", run="m:f")]), "this workstream adds the task 'b'"),
        (of(), W("w"), "this workstream lacks the task 'a'"),
        (
            W("w", tasks=[Task(name, run="m:f") for name in "abc"]),
            W("w", tasks=[Task(name, run="m:f") for name in "xyc"]),
            "this workstream adds the task 'x' (and 1 more) and lacks the task 'a' (and 1 more)",
        ),
        (
            W("w", tasks=[Task(name, run="m:f") for name in "abc"]),
            W("w", tasks=[Task(name, run="m:f") for name in "acb"]),
            "task 'c' is now in the place of task 'b'",
        ),
        (of(), of(timeout="2m"), "task 'a': timeout was not set and is '2m' now"),
        (of(timeout=60), of(timeout="2m"), "task 'a': timeout was 60.0 and is '2m' now"),
        (of(wait="2030-01-01T00:00:00Z"), of(wait="1h"), "task 'a': wait was '2030-01-01T00:00:00Z' and is '1h' now"),
        (of(), W("w", tasks=[Task("a", run="m:g")]), "task 'a': run was 'm:f' and is 'm:g' now"),
        (of(optional=True), of(), "task 'a': optional was True and is False now"),
        (of(depends_on=["b"]), of(depends_on=["b", "c"]), "task 'a': depends_on was ['b'] and is ['b', 'c'] now"),
        (of(retry=Retry(jitter=0.1)), of(retry=Retry()), "task 'a': retry.jitter was 0.1 and is 0.25 now"),
        (of(retry=Retry(wait={"one": 1})), of(retry=Retry(wait={})), "task 'a': retry.wait.one is missing"),
        (of(hold=Approval()), of(), "task 'a': hold is different"),
        (
            of(hold=Approval(clauses=[Clause(person="ana")])),
            of(hold=Approval(clauses=[Clause(person="bo")])),
            "task 'a': hold.clauses[0].person was 'ana' and is 'bo' now",
        ),
        (of(checks=[Check(file="")]), of(checks=[Check(file="y")]), "task 'a': checks[0].file was '' and is 'y' now"),
        (of(checks=[Check(file="a")]), of(), "task 'a': checks is different"),
        (W("w", max_parallel=2), W("w"), "max_parallel was 2 and is not set now"),
        (W("w"), W("w", tools={"git": Tool()}), "tools.git is new"),
        (
            W("w", tools={"git": Tool(breaker=Breaker(cooldown=60))}),
            W("w", tools={"git": Tool(breaker=Breaker(cooldown=61))}),
            "tools.git.breaker.cooldown was 60.0 and is 61.0 now",
        ),
        (W("w"), W("w", defaults=Defaults(on_loss="park")), "defaults.on_loss was not set and is 'park' now"),
    ],
)
def test_the_first_difference_is_named(before: W, now: W, told: str) -> None:
    before, now = (msgspec.json.decode(msgspec.json.encode(one), type=W) for one in (before, now))
    assert difference(before, now) == told


@pytest.mark.parametrize(
    ("before", "now", "place"),
    [
        (of(args={"key": "s3cret"}), of(args={"key": "0ther"}), "args.key"),
        (of(args={"scale": 1}), of(args={"scale": 1.0}), "args.scale"),
        (of(args={"scale": 1}), of(args={"scale": True}), "args.scale"),
        (of(env={"KEY": "s3cret"}), of(env={"KEY": "0ther"}), "env.KEY"),
        (of(command=["login", "s3cret"]), of(command=["login", "0ther"]), "command[1]"),
        (of(command="login s3cret"), of(command=["login", "0ther"]), "command"),
        (of(condition=Condition(command="s3cret")), of(condition=Condition(command="0ther")), "condition.command"),
        (of(on_failed=[Hook(command="s3cret")]), of(on_failed=[Hook(command="0ther")]), "on_failed[0].command"),
    ],
)
def test_what_may_be_secret_is_told_by_its_place_only(before: W, now: W, place: str) -> None:
    assert difference(before, now) == f"task 'a': {place} is different"


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (of(args={"b": {"x": 1, "y": [2]}, "a": None}), of(args={"a": None, "b": {"y": [2], "x": 1}})),
        (of(timeout=60), of(timeout="1m")),
        (of(retry=Retry(base_delay=2.0)), of(retry=Retry(base_delay="2s"))),
        (of(checks=[Check(file="a", timeout="90s")]), of(checks=[Check(file="a", timeout="1m30s")])),
        (W("w", tools={"a": Tool(), "b": Tool()}), W("w", tools={"b": Tool(), "a": Tool()})),
        (W("w", defaults=Defaults(timeout="1h"), wait="2d"), W("w", defaults=Defaults(timeout=3600), wait="48h")),
        (of(args={"deep": deep(1)}), of(args={"deep": deep(1)})),
        (of(wait="2030-01-31T09:00:00+01:00"), of(wait="2030-01-31T08:00:00Z")),
        (of(retry=Retry(max_retries=2)), of(retry=Retry(max_attempts=3))),
        (of(retry=Retry()), of(retry=Retry(max_attempts=5))),
        (of(capabilities=["gpu", "big"]), of(capabilities=["big", "gpu"])),
        (of(secrets=["A", "B"], depends_on=["x", "y"]), of(secrets=["B", "A"], depends_on=["y", "x"])),
        (of(after=["x", "y"], expected_exit_codes=[0, 3]), of(after=["y", "x"], expected_exit_codes=[3, 0])),
        (
            W("w", tools={"a": Tool(breaker=Breaker(ignore=["OSError", "KeyError"]))}),
            W("w", tools={"a": Tool(breaker=Breaker(ignore=["KeyError", "OSError"]))}),
        ),
    ],
)
def test_what_means_the_same_has_no_difference(before: W, now: W) -> None:
    assert difference(before, now) is None
    assert difference(now, before) is None


def test_a_difference_is_one_line_of_bounded_length_however_large_and_deep_both_are() -> None:
    named = of(capabilities=["x\n" * 10_000])
    for before, now in (
        (W("w", tasks=[]), W("w", tasks=[Task("n" * 100_000, run="m:f")])),
        (of(), named),
        (of(args={}), of(args={"k\n" * 10_000: 1})),
        (of(args={"deep": deep(1)}), of(args={"deep": deep(2)})),
        (of(cwd="/a" * 10_000), of(cwd="/b" * 10_000)),
    ):
        told = difference(before, now)
        assert told is not None
        assert len(told) < 300
        assert told.isprintable()


@pytest.mark.anyio
@pytest.mark.parametrize("durable", [True, False])
async def test_who_submits_another_workstream_is_told_what_differs(tmp_path: Path, *, durable: bool) -> None:
    one = Task("weigh", run=weigh, args={"scale": 1}, timeout=60)
    more = Task("label", run=weigh)
    async with Runtime(tmp_path / "j.db" if durable else None) as runtime:
        job = await runtime.submit(W("crate", tasks=[one]), id="crate-7")
        await job.wait()
        with pytest.raises(JobExists) as told:
            await runtime.submit(W("crate", tasks=[one, more]), id="crate-7")
        assert str(told.value) == (
            "there is a job 'crate-7' already, submitted with another workstream (completed now): this workstream adds "
            "the task 'label'. Use another id, or submit exactly what was submitted under this one. To replace it by "
            "this one: existing='replace_ended'."
        )
        with pytest.raises(JobExists, match=r"\): task 'weigh': timeout was 60\.0 and is '2m' now\. Use another id"):
            await runtime.submit(W("crate", tasks=[msgspec.structs.replace(one, timeout="2m")]), id="crate-7")


@pytest.mark.anyio
async def test_the_same_in_another_order_and_spelling_is_the_same_job(tmp_path: Path) -> None:
    async with Runtime(tmp_path / "j.db") as runtime:
        first = W("w", tasks=[Task("a", run=weigh, args={"x": 1, "y": 2}, timeout=60, secrets=["HOME", "PATH"])])
        await runtime.submit(first, id="j")
        again = W("w", tasks=[Task("a", run=weigh, args={"y": 2, "x": 1}, timeout="1m", secrets=["PATH", "HOME"])])
        assert (await (await runtime.submit(again, id="j")).wait()).results == {"a": 1}
        described = msgspec.structs.replace(again, description="Weigh them all.")
        assert (await runtime.submit(described, id="j")).record.description is None  # it does not change the work
        assert len(runtime.journal.reader.jobs()) == 1


async def spells_otherwise(task: TaskContext) -> str:
    await task.submit(W("c", tasks=[Task("a", run=weigh, args={"x": 1, "y": 2}, timeout=60)]), name="c")
    child = await task.submit(W("c", tasks=[Task("a", run=weigh, args={"y": 2, "x": 1}, timeout="1m")]), name="c")
    await child.wait()
    with pytest.raises(JobExists) as told:
        await task.submit(W("c", tasks=[Task("a", run=weigh, timeout=60)]), name="c")
    return str(told.value)


@pytest.mark.anyio
async def test_a_child_is_held_against_what_it_was_by_the_same_rules() -> None:
    async with Runtime() as runtime:
        job = await runtime.submit(W("p", tasks=[Task("p", run=spells_otherwise)]), id="j")
        told = (await job.wait()).raise_for_state().results["p"]
    assert told == (
        "there is a child job 'j/p/c' already, with another workstream (completed now): task 'a': args.x is missing. "
        "Use another name, or submit the same workstream in every attempt."
    )
