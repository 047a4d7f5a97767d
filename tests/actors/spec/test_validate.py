"""Every kind of mistake in a specification is a finding with its place; all come at once, and nothing is raised."""

import datetime
import functools
import sys
import time
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callboard.actors.spec.fields import kind_of
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
    Worker,
    Workstream,
)
from callboard.actors.spec.validate import SpecificationError, findings, name_problem, worker_findings


def plain() -> None: ...


async def coro() -> None: ...


async def later(n: int) -> float:
    return n


def generator() -> Any:
    yield 1


class CallableAsync:
    async def __call__(self) -> None: ...


def found(*tasks: Any, **settings: Any) -> dict[str, str]:
    return {finding.where: str(finding) for finding in findings(Workstream("w", tasks=list(tasks), **settings))}


def one(field: str, **settings: Any) -> str:
    settings.setdefault("command", ["true"])
    problems = found(Task("a", **settings))
    assert list(problems) == [f"tasks[0].{field}" if field else "tasks[0]"], problems
    return next(iter(problems.values()))


def test_a_good_specification_has_no_findings() -> None:
    assert not found(
        Task("build", run=coro, args={"a": [1, 2.5, None, True, {"b": "ü"}]}),
        Task("Test it", command=["true"], depends_on=["build"], priority=-5, tool="gcc", engine="command"),
        Task("ship", command="echo $X", shell=True, after=["build"], depends_on=["Test it"], env={"X": "1=2"}),
        Task("tell", run="pkg.module:Class.method", condition=Condition(run=plain), checks=[Check(file="x")]),
        Task("log", run="registered", retry=Retry(max_retries=0, jitter=0, base_delay=0), engine="thread"),
        deadline="2h",
        tools={"gcc": Tool(breaker=Breaker(cooldown=0)), "other": Tool(max_parallel=1)},
        defaults=Defaults(heartbeat_timeout=5, kill_grace=0),
    )
    assert not findings(Workstream("nothing"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("", "empty"),
        (".", "dot"),
        ("..", "dot"),
        ("a/b", "'/'"),
        ("a\\b", "'\\\\'"),
        ("a\nb", "'\\n'"),
        ("a\0b", "'\\x00'"),
        ("a\u202eb", "'\\u202e'"),
        ("\ud800", "surrogate"),
        ("NUL", "Windows"),
        ("com1.txt", "Windows"),
        ("a:b", "':'"),
        (" a", "space"),
        ("a ", "space"),
        ("a.", "dot"),
        ("x" * 201, "201 bytes"),
        ("ü" * 101, "202 bytes"),
    ],
)
def test_names_that_cannot_be_file_names(name: str, words: str) -> None:
    assert words in found(Task(name, command=["true"]))["tasks[0].name"]
    assert words in {f.where: str(f) for f in findings(Workstream(name))}["name"]


@pytest.mark.parametrize("name", ["a", "A-1", "build and test", "日本", "-x", ".hidden", "x" * 200, "null", "com10"])
def test_names_that_can(name: str) -> None:
    assert name_problem(name) is None


@pytest.mark.parametrize(("first", "second"), [("a", "a"), ("Build", "bUILD"), ("ü", "u\u0308"), ("straße", "STRASSE")])
def test_doubled_names(first: str, second: str) -> None:
    problems = found(Task(first, command=["true"]), Task(second, command=["true"]))
    assert list(problems) == ["tasks[1].name"]
    tools = findings(Workstream("w", tools={first: Tool(), second + "x": Tool(), first + "X": Tool()}))
    assert len(tools) == 1


def test_dependencies_that_are_unknown_doubled_or_contradictory() -> None:
    problems = found(
        Task("build", command=["true"]),
        Task("a", command=["true"], depends_on=["biuld", "a", "build", "build"], after=["build", "Build"]),
    )
    assert "did you mean 'build'?" in problems["tasks[1].depends_on[0]"]
    assert "waits for itself" in problems["tasks[1].depends_on[1]"]
    assert "twice" in problems["tasks[1].depends_on[3]"]
    assert "both depends_on and after" in problems["tasks[1].after[0]"]
    assert "did you mean 'build'?" in problems["tasks[1].after[1]"]


def test_every_knot_is_told_with_a_cycle() -> None:
    def task(name: str, *needs: str) -> Task:
        return Task(name, command=["true"], depends_on=list(needs[:1]), after=list(needs[1:]))

    problems = found(
        task("x"), task("a", "b", "x"), task("b", "c"), task("c", "a", "b"), task("d", "e"), task("e", "d")
    )
    assert len(problems) == 2
    assert "a -> b -> c -> a" in problems["tasks[1]"]
    assert "d -> e -> d" in problems["tasks[4]"]
    assert len(found(task("tail", "p"), task("p", "q"), task("q", "p"))) == 1


def test_a_chain_and_a_cycle_of_ten_thousand_need_no_recursion_and_little_time() -> None:
    chain = [Task(f"t{i}", command=["true"], depends_on=[f"t{i - 1}"] if i else []) for i in range(10_000)]
    before = time.process_time()
    assert not found(*chain)
    chain[0] = Task("t0", command=["true"], depends_on=["t9999"])
    problems = found(*chain)
    assert time.process_time() - before < 5  # 0.2 s; a quadratic one takes minutes
    assert list(problems) == ["tasks[0]"]
    assert "t0 -> t9999" in problems["tasks[0]"]
    assert "9,980 more" in problems["tasks[0]"]


def test_names_of_headers_are_checked() -> None:
    told = [str(one) for one in findings(Workstream("w", request_id_headers=["X-Event-Id", "x-event-id", "a b", ""]))]
    assert [text.partition(":")[0] for text in told] == [f"request_id_headers[{index}]" for index in (1, 2, 3)]
    assert "listed twice" in told[0]
    assert "cannot be the name of a header" in told[1]


def test_many_unknown_dependencies_stay_cheap() -> None:
    tasks = [Task(f"task-{i}", command=["true"], depends_on=[f"tusk-{i}"]) for i in range(5_000)]
    assert len(found(*tasks)) == 201  # the last finding reports the limit


@pytest.mark.parametrize(
    ("field", "given", "words"),
    [
        ("", {"command": None}, "neither run nor command"),
        ("", {"run": plain}, "both run and command"),
        ("", {"receive": "a"}, "both command and receive"),
        ("", {"command": None}, "nor receive"),
        ("receive", {"command": None, "receive": ""}, "is empty"),
        ("receive", {"command": None, "receive": "a/b"}, "separates the names"),
        ("engine", {"command": None, "receive": "a", "engine": "loop"}, "only receives a message"),
        ("args", {"command": None, "receive": "a", "args": {"b": 1}}, "only receives a message"),
        ("env", {"command": None, "receive": "a", "env": {"B": "1"}}, "only receives a message"),
        ("on_loss", {"command": None, "receive": "a", "on_loss": "rerun"}, "only receives a message"),
        ("retry", {"command": None, "receive": "a", "retry": Retry()}, "the end of its timeout is final"),
        ("total_timeout", {"command": None, "receive": "a", "total_timeout": 9}, "its timeout"),
        ("timeout", {"command": None, "receive": "a", "timeout": 0}, "limit of 0"),
        ("command", {"command": "echo a b"}, "['echo', 'a', 'b']"),
        ("shell", {"shell": True}, "shell takes one text"),
        ("shell", {"command": None, "run": plain, "shell": True}, "no"),
        ("command", {"command": " ", "shell": True}, "empty"),
        ("command", {"command": []}, "no program"),
        ("command", {"command": ["a\0"]}, "NUL"),
        ("run", {"command": None, "run": 7}, "must be a function"),
        ("run", {"command": None, "run": "a b:c"}, "import path"),
        ("run", {"command": None, "run": " "}, "empty"),
        ("run", {"command": None, "run": generator}, "generator"),
        ("engine", {"engine": "loop"}, "cannot run a command"),
        ("engine", {"command": None, "run": plain, "engine": "command"}, "cannot run a function"),
        ("engine", {"command": None, "run": coro, "engine": "thread"}, "async"),
        ("engine", {"command": None, "run": plain, "engine": "loop"}, "plain function"),
        ("engine", {"engine": "lop"}, "did you mean 'loop'?"),
        ("env", {"command": None, "run": plain, "env": {"A": "1"}}, "for commands"),
        ("env['A=B']", {"env": {"A=B": ""}}, "environment variable"),
        ("env.A", {"env": {"A": "\0"}}, "NUL"),
        ("env.A", {"env": {"A": 1}}, "must be text"),
        ("cwd", {"cwd": ""}, "no path"),
        ("expected_exit_codes", {"expected_exit_codes": []}, "[0]"),
        ("expected_exit_codes[0]", {"expected_exit_codes": [-100]}, "no exit code"),
        ("max_output", {"max_output": -1}, "at least 0"),
        ("heartbeat_timeout", {"heartbeat_timeout": 5}, "no heartbeats"),
        ("timeout", {"timeout": "5 minutes"}, "not a duration"),
        ("timeout", {"timeout": -1}, "not a duration"),
        ("timeout", {"timeout": float("nan")}, "not a duration"),
        ("timeout", {"timeout": 0}, "limit of 0"),
        ("timeout", {"timeout": True}, "must be a number or text"),
        ("timeout", {"timeout": datetime.timedelta(seconds=5)}, "timedelta"),
        ("kill_grace", {"kill_grace": "-1s"}, "not a duration"),
        ("max_losses", {"max_losses": -1}, "at least 0"),
        ("max_error_repeats", {"max_error_repeats": 0}, "at least 1"),
        ("priority", {"priority": "high"}, "whole number"),
        ("priority", {"priority": "5"}, "without quotes"),
        ("priority", {"priority": 2**64}, "64 bits"),
        ("optional", {"optional": "no"}, "true or false"),
        ("depends_on", {"depends_on": "build"}, "brackets: ['build']"),
        ("depends_on[0]", {"depends_on": [3]}, "in quotes"),
        ("tool", {"tool": "a/b"}, "'/'"),
        ("capabilities[0]", {"capabilities": [""]}, "empty"),
        ("args", {"args": {"a": {1, 2}}}, "a set"),
        ("args", {"args": {"a": b"x"}}, "bytes"),
        ("args", {"args": {"a": float("inf")}}, "JSON"),
        ("args", {"args": {"a": {3: 4}}}, "only text"),
        ("args", {"args": {"a": ["\ud800"]}}, "surrogate"),
        ("args", {"args": {"a": datetime.date(2026, 1, 1)}}, "date"),
        ("retry.max_retries", {"retry": Retry(max_attempts=3, max_retries=2)}, "both given"),
        ("retry.max_attempts", {"retry": Retry(max_attempts=0)}, "at least 1"),
        ("retry.max_attempts", {"retry": Retry(max_attempts="3")}, "without quotes"),  # type: ignore[arg-type]
        ("retry.max_retries", {"retry": Retry(max_retries=-1)}, "at least 0"),
        ("retry.jitter", {"retry": Retry(jitter=1.5)}, "between 0 and 1"),
        ("retry.base_delay", {"retry": Retry(base_delay=90)}, "above max_delay"),
        ("retry.wait", {"retry": Retry(wait={"strategy": "wait_fix"})}, "did you mean 'wait_fixed'?"),
        ("retry.wait", {"retry": Retry(wait=3)}, "no wait strategy"),
        ("retry.wait", {"retry": Retry(wait=later)}, "is async or a generator, but must return seconds at once"),
        ("retry.max_tries", {"retry": {"max_tries": 3}}, "unknown key"),
        ("condition", {"condition": Condition()}, "neither"),
        ("condition.command", {"condition": Condition(command="a b")}, "shell"),
        ("on_failed[1]", {"on_failed": [Hook(run=plain), Hook(run=plain, command=["x"])]}, "both"),
        ("on_failed[0].timeout", {"on_failed": [Hook(run=plain, timeout="soon")]}, "duration"),
        ("checks[0]", {"checks": [Check()]}, "exactly one of"),
        ("checks[0]", {"checks": [Check(file="a", imports="b")]}, "not file and imports"),
        ("checks[0].imports", {"checks": [Check(imports="a-b")]}, "module"),
        ("checks[0].file", {"checks": [Check(file="")]}, "no path"),
    ],
)
def test_one_mistake_gives_one_finding(field: str, given: dict[str, Any], words: str) -> None:
    assert words in one(field, **given)


def test_mistakes_outside_of_tasks() -> None:
    problems = found(
        max_parallel=0,
        worker_count=11,
        retry=Retry(max_attempts=0),
        deadline="x",
        env={"": "x"},
        checks=[Check()],
        on_completed=[Hook()],
        defaults=Defaults(timeout=0, recovery_timeout=-1, retry=Retry(jitter=-1)),
        tools={"t": Tool(max_parallel=0, breaker=Breaker(failure_threshold=0, success_threshold=0, cooldown="1y"))},
    )
    assert set(problems) == {
        "max_parallel",
        "worker_count",
        "retry.max_attempts",
        "deadline",
        "env['']",
        "checks[0]",
        "on_completed[0]",
        "defaults.timeout",
        "defaults.recovery_timeout",
        "defaults.retry.jitter",
        "tools.t.max_parallel",
        "tools.t.breaker.failure_threshold",
        "tools.t.breaker.success_threshold",
        "tools.t.breaker.cooldown",
    }


def test_a_wrong_type_hides_no_other_mistake() -> None:
    problems = found(
        Task("a", command=["true"], priority="x", timeout="y", depends_on=["b"]),  # type: ignore[arg-type]
        "no task",
        Task(5, command=None),  # type: ignore[arg-type]
    )
    assert set(problems) == {
        "tasks[0].priority",
        "tasks[0].timeout",
        "tasks[0].depends_on[0]",
        "tasks[1]",
        "tasks[2].name",
        "tasks[2]",
    }


def test_bodies_are_looked_up_when_a_resolver_is_given() -> None:
    asked: list[str] = []

    def bodies(path: str) -> Any:
        asked.append(path)
        if path == "m:coro":
            return coro
        raise LookupError(f"{path} is not there")

    stream = Workstream(
        "w",
        tasks=[
            Task("a", run="m:coro", engine="thread"),
            Task("b", run="m:coro"),
            Task("c", run="m:no", on_failed=[Hook(run="m:no")]),
        ],
    )
    told = {finding.where: finding.message for finding in findings(stream, bodies=bodies)}
    assert set(told) == {"tasks[0].engine", "tasks[2].run", "tasks[2].on_failed[0].run"}
    assert told["tasks[2].run"] == "m:no is not there"
    assert asked == ["m:coro", "m:no"]


def test_workers() -> None:
    problems = worker_findings(
        [
            Worker("a", engine="loop"),
            Worker("A", engine="loop", capacity=0),
            Worker("b", engine="x", capabilities=[""]),
        ]  # type: ignore[arg-type]
    )
    assert {f.where for f in problems} == {
        "workers[1].name",
        "workers[1].capacity",
        "workers[2].engine",
        "workers[2].capabilities[0]",
    }


def test_workers_with_processes() -> None:
    pool = Worker("pool", engine="process", capacity=2, recycle_after=10)
    assert worker_findings([pool]) == []
    assert [(one.name, one.capacity, one.recycle_after) for one in pool.each()] == [
        ("pool-1", 1, 10),
        ("pool-2", 1, 10),
    ]
    assert Worker("one", engine="process").each() == [Worker("one", engine="process")]
    problems = worker_findings(
        [pool, Worker("POOL-2", engine="loop", recycle_after=1), Worker("x", engine="process", recycle_after=0)]
    )
    assert {f.where for f in problems} == {"workers[1].recycle_after", "workers[2].recycle_after", "workers[0].name"}


def test_what_people_say_of_jobs_and_workers_is_bounded_and_json() -> None:
    tasks = [Task("a", run="m:f")]
    assert findings(Workstream("w", description="x" * 10_000, tasks=tasks)) == []
    (problem,) = findings(Workstream("w", description="x" * 10_001, tasks=tasks))
    assert (problem.where, "10,001 characters" in problem.message) == ("description", True)
    kept: dict[str, Any] = {"owner": "ops", "racks": [1, None, {"a": 0.5}]}
    assert worker_findings([Worker("w", engine="loop", metadata=kept)]) == []
    for wrong in ({"x": {1, 2}}, {"x": float("nan")}, {"x": "y" * 20_000}):
        (problem,) = worker_findings([Worker("w", engine="loop", metadata=cast("Any", wrong))])
        assert problem.where.startswith("workers[0].metadata"), wrong


def test_the_error_lists_all_with_advice() -> None:
    error = SpecificationError(findings(Workstream("w", tasks=[Task("a"), Task("b", command="x y")])), "w.toml")
    lines = str(error).splitlines()
    assert lines[0] == "2 things are wrong in w.toml:"
    assert lines[1].startswith("  tasks[0]: task 'a' has neither")
    assert lines[2].endswith("(write a list of arguments, as ['x', 'y'], or add shell = true)")
    assert isinstance(error, ValueError)


def test_kind_of() -> None:
    assert kind_of(plain) == "thread"
    assert kind_of(coro) == "loop"
    assert kind_of(functools.partial(functools.partial(coro))) == "loop"
    assert kind_of(CallableAsync()) == "loop"
    assert kind_of(CallableAsync) == "thread"


ATOMS: list[Any] = [
    None, True, False, 0, 1, -1, 2**70, 0.5, -0.0, float("nan"), float("inf"),
    "", "a", "x y", "5m", "\0", "\ud800", "é\n",
    "x" * 300, b"", b"\xff", object(), Path("x"), plain, 1j, datetime.date(2026, 1, 1), Retry(), Task("t"),
]  # fmt: skip


def junk(random: Random, depth: int = 0) -> Any:
    """Any value. By a seed, since Hypothesis takes ten times as long to draw each part of it."""
    match random.randrange(6) if depth < 3 else 0:
        case 1:
            return [junk(random, depth + 1) for _ in range(random.randrange(4))]
        case 2:
            return {random.choice(["", "a", "t", "\0"]): junk(random, depth + 1) for _ in range(random.randrange(4))}
        case _:
            return random.choice(ATOMS)


@settings(max_examples=300)
@given(st.integers(0, 2**32))
def test_no_value_whatever_makes_it_raise(seed: int) -> None:
    random = Random(seed)
    fields = random.sample(Task.__struct_fields__[1:], random.randrange(5))
    name, tools = junk(random), junk(random)
    findings(Workstream("w", tasks=[Task(name, **{field: junk(random) for field in fields})], tools=tools))
    findings(Workstream(name, tasks=tools, defaults=name))
    findings(Workstream("w", tasks=[Task("a", command=["x"], retry=Retry(max_attempts=name, wait=tools))]))


# -- approvals and waits ----------------------------------------------------------------------------------------------


def members(team: str) -> list[str]:
    return [team]


def held(*clauses: Clause, **more: Any) -> str:
    ((place, told),) = found(Task("a", run=plain, hold=Approval(clauses=list(clauses), **more))).items()
    return f"{place.removeprefix('tasks[0].hold')} {told.partition(': ')[2]}"


def test_good_approvals_and_waits_have_no_findings() -> None:
    rule = Approval(people=2, clauses=[Clause(person="ana"), Clause(team="ops", people=2, members=members)])
    assert not found(Task("a", run=plain, hold=rule, wait="2030-01-31T09:00+02:00"), hold=Approval(), wait=5)
    assert not found(Task("a", run=plain, wait="1h"), deadline="2h")


@pytest.mark.parametrize(
    ("clauses", "told"),
    [
        ([Clause()], ".clauses[0] the clause names no person, people or team (give person, people or team)"),
        ([Clause(person="ana", people=2)], ".clauses[0] a clause is about one person, or about people"),
        ([Clause(person=" ")], ".clauses[0].person is empty"),
        ([Clause(people=0)], ".clauses[0].people must be at least 1, not 0"),
        ([Clause(person="ana"), Clause(person="Ana")], ".clauses[1].person 'Ana' is named twice"),
        ([Clause(people=1, members=members)], ".clauses[0].members lists a team's members, and no team is named"),
        ([Clause(team="ops")], ".clauses[0] team 'ops' has no function for its members"),
        ([Clause(team="ops", members="no path:")], ".clauses[0].members 'no path:' is no import path"),
        (
            [Clause(team="ops", members=members), Clause(team="ops", people=2, members=plain)],
            ".clauses[1].members team 'ops' has another function in another clause",
        ),
    ],
)
def test_what_is_wrong_with_a_clause_is_told(clauses: list[Clause], told: str) -> None:
    assert held(*clauses).startswith(told)


def test_what_is_wrong_with_an_approval_is_told() -> None:
    assert held(people=0).startswith(".people must be at least 1, not 0")
    assert held(expires=0).startswith(".expires a limit of 0")
    assert held(expires="soon").startswith(".expires 'soon' is not a duration")
    assert "unknown key 'peopel'" in str(found(Task("a", run=plain, hold={"peopel": 2})))  # type: ignore[arg-type]
    assert list(found(hold=Approval(people=0))) == ["hold.people"]


@pytest.mark.parametrize(
    ("wait", "told"),
    [
        ("2030-01-31T09:00", "says no zone"),
        ("2030-02-31T09:00Z", "is no point in time"),
        ("later", "is not a duration"),
        (0, "a wait of 0 never waits"),
        (datetime.date(2030, 1, 31), "must be a number or text, not a date"),
        (True, "must be a number or text, not true or false"),
    ],
)
def test_what_is_wrong_with_a_wait_is_told(wait: Any, told: str) -> None:
    assert told in one("wait", wait=wait)
    assert told in found(wait=wait)["wait"]


def test_a_wait_that_the_deadline_does_not_let_end_is_a_contradiction() -> None:
    problems = found(Task("a", run=plain, wait="3h"), Task("b", run=plain, wait="1h"), wait="2h", deadline="2h")
    assert list(problems) == ["wait", "tasks[0].wait"]
    assert "the wait ends after the deadline (2h)" in problems["wait"]


def ignores(name: str) -> dict[str, str]:
    def finds_nothing(path: str) -> Any:
        raise LookupError(path)

    tools = {"t": Tool(breaker=Breaker(ignore=[name]))}
    spec = Workstream("w", tasks=[Task("a", command=["x"])], tools=tools)
    return {finding.where: str(finding) for finding in findings(spec, bodies=finds_nothing)}


@pytest.mark.parametrize(
    "name",
    [
        "ValueError", "timed_out", "exit_code", "resources", "RetryAfter", "json.decoder.JSONDecodeError",
        "__main__.Mine", "steps.work.<locals>.Mine", "AskCycle", "AskCycleError", "InvalidPair", "InvalidPairError",
    ],
)  # fmt: skip
def test_names_of_errors_that_a_breaker_may_ignore(name: str) -> None:
    assert not ignores(name)


@pytest.mark.parametrize(
    ("name", "told", "advice"),
    [
        ("ValeuError", "is neither an error that can be found", "did you mean 'ValueError'?"),
        ("transcient", "is neither an error that can be found", "did you mean 'transient'?"),
        ("json.Nothing", "is neither an error that can be found", "the module that defines it"),
        ("json.dumps", "is neither an error that can be found", "the module that defines it"),
        ("no_such_package.Refused", "is neither an error that can be found", "the module that defines it"),
        ("json.JSONDecodeError", "is recorded as 'json.decoder.JSONDecodeError'", "write 'json.decoder."),
    ],
)
def test_a_name_of_an_error_that_would_never_match_is_refused(name: str, told: str, advice: str) -> None:
    (text,) = ignores(name).values()
    assert told in text
    assert advice in text


def test_a_module_that_raises_is_not_the_names_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "raises_at_import.py").write_text("raise SystemExit('no')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not ignores("raises_at_import.Refused")


def test_an_error_of_the_program_s_own_file_is_named_as_it_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_program.py").write_text("class Base(Exception): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert not ignores("own_program.Base")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(tmp_path / "own_program.py"), raising=False)
    (text,) = ignores("own_program.Base").values()
    assert "is recorded as '__main__.Base'" in text
    assert "write '__main__.Base'" in text
