"""`callboard fire` for the runtime's own entities: jobs, tasks, workers and breakers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from anyio.from_thread import BlockingPortal, start_blocking_portal

from callboard import Approval, Fire, Lifecycle, Machine, Phase, Runtime, State, Task, Transition, Worker, Workstream
from callboard.actors.spec.model import Breaker, Tool

from .conftest import CommandResult

Cli = Callable[..., CommandResult]
OWN = Machine(
    "ours", "new",
    states=[
        State("new", Phase.PENDING, bounded_by="its dependencies"),
        State("works", Phase.RUNNING, bounded_by="its body"),
        State("done", Phase.COMPLETED, terminal=True),
        State("gone", Phase.CANCELLED, terminal=True),
    ],
    transitions=[
        Transition("new", "begin", "works"), Transition("works", "finish", "done"), Transition("new", "drop", "gone"),
        Transition("works", "drop", "gone"),
    ],
)  # fmt: skip
DROPPED = Lifecycle("ours", "task", OWN, {"start": ("begin",), "succeed": ("finish",), "cancel": ("drop",)})


class Live:
    """A runtime on callboard.db in a thread of its own."""

    def __init__(self, portal: BlockingPortal, runtime: Runtime) -> None:
        self.portal = portal
        self.runtime = runtime

    def submit(self, **more: Any) -> Any:
        tasks = [Task("build", command=["true"], hold=Approval()), Task("deploy", command=["true"], hold=Approval())]
        spec = Workstream("release", tasks=tasks, **more)
        return self.portal.call(lambda: self.runtime.submit(spec, id="release"))

    def decided(self, task: str) -> list[tuple[str | None, str | None]]:
        job = self.portal.call(lambda: self.runtime.job("release"))
        return [(one.by, one.reason) for one in job.task(task).record.decisions]


@contextlib.contextmanager
def running(**options: Any) -> Iterator[Live]:
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(
            Runtime("callboard.db", **{"workers": (), "drain_deadline": 0, **options})
        ) as runtime,
    ):
        yield Live(portal, runtime)


def test_a_task_is_approved_by_an_event(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.submit()
        words = ["fire", "release/deploy", "approve", "--by", "ana", "--reason", "fine", "--request-id", "r1"]
        result = cli(*words)
        assert (result.code, result.out, result.err) == (0, "task release@1/deploy queued (fine)\n", "")
        assert cli(*words).out == result.out  # the same again
        again = cli("approve", "release/deploy", "--by", "ana", "--reason", "fine", "--request-id", "r1")
        assert again.out == result.out  # and so is the verb
        assert live.decided("deploy") == [("ana", "fine")]
        result = cli("fire", "release@1/build", "start")
        assert result.code == 1
        assert "'start' is not possible in state 'held'. Possible there: approve, cancel, reject." in result.err
        assert "The runtime fires 'start' itself" in result.err
        result = cli("fire", "release/build", "aprove", "--json")
        answer = json.loads(result.out)
        assert (result.code, answer["refused"], answer["allowed"]) == (1, "conflict", ["approve", "cancel", "reject"])
        assert "did you mean 'approve'?" in answer["error"]
        result = cli("fire", "release", "cancel", "--by", "bo", "--json")
        assert (json.loads(result.out)["state"], json.loads(result.out)["id"]) == ("cancelled", "release")
        assert "is not possible in state 'cancelled'" in cli("fire", "release", "resume").err


def test_names_say_what_is_meant(cli: Cli, folder: Path) -> None:
    tools = {"kiln": Tool(breaker=Breaker(cooldown="1h"))}
    with running(workers=[Worker("w", engine="loop")], tools=tools) as live:
        live.submit()
        for name in ("kiln", "breaker:kiln"):
            assert cli("fire", name, "trip").out.startswith("breaker kiln open")
        assert cli("fire", "kiln", "reset").out.startswith("breaker kiln closed")
        assert "not 'told as running'" in cli("fire", "w", "pause").err
        assert cli("fire", "worker:w", "terminate").out == "worker w#1 terminated\n"
        assert "There is no worker 'v'" in cli("fire", "worker:v", "pause").err
        assert "There is no machine 'relaese' in this journal" in cli("fire", "relaese", "pause").err
        assert "has no task 'nope'" in cli("fire", "release/nope", "approve").err
        result = cli("fire", "job:release", "cancel", "--metadata", "n=1")
        assert (result.code, "A job keeps no metadata with an event" in result.err) == (2, True)


def test_at_a_stopped_journal_it_waits_or_is_refused(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.submit()
        live.portal.call(live.runtime._services.settled, 60)
    for event, why in (
        ("start", "possible now: approve, cancel, reject. The runtime fires 'start' itself"),
        ("skip", "it is held; possible now: approve, cancel, reject."),
        ("aprove", "did you mean 'approve'?"),
    ):
        result = cli("fire", "release/deploy", event)
        assert (result.code, f"{event!r} at task release@1/deploy is not possible" in result.err) == (1, True)
        assert why in result.err
    words = ["fire", "release/deploy", "approve", "--by", "ana", "--request-id", "r1"]
    result = cli(*words)
    assert (result.code, "It will take effect at the next start" in result.err) == (4, True)
    assert cli(*words).code == 4
    assert cli("approve", "release/deploy", "--by", "ana", "--request-id", "r1").code == 4  # the same command
    result = cli("reject", "release/deploy", "--by", "ana", "--request-id", "r1")
    assert (result.code, "was given to another command before" in result.err) == (1, True)
    with running() as live:
        assert live.decided("deploy") == [("ana", None)]
        assert cli(*words).out == "task release@1/deploy queued\n"
    result = cli(*words)  # its answer is kept
    assert (result.code, result.out) == (0, "task release@1/deploy queued\n")


def test_the_key_of_what_a_program_has_said_is_known_at_a_stopped_journal(cli: Cli, folder: Path) -> None:
    with running(tools={"kiln": Tool(breaker=Breaker(cooldown="1h"))}) as live:
        live.submit()
        breaker = live.portal.call(lambda: live.runtime.breaker("kiln"))
        live.portal.call(lambda: breaker.trip(reason="hot", by="ana", request_id="t"))
        task = live.portal.call(lambda: live.runtime.job("release")).task("deploy")
        live.portal.call(lambda: task.approve(by="ana", request_id="a"))
    for words in (["fire", "kiln", "trip"], ["breaker", "trip", "kiln"]):
        assert cli(*words, "--reason", "hot", "--by", "ana", "--request-id", "t").code == 4
    assert cli("fire", "release/deploy", "approve", "--by", "ana", "--request-id", "a").code == 4
    result = cli("fire", "release/deploy", "reject", "--by", "ana", "--request-id", "a")
    assert (result.code, "was given to another command before" in result.err) == (1, True)


def test_a_published_lifecycle_has_its_own_words(cli: Cli, folder: Path) -> None:
    with running() as live:
        live.submit(lifecycle="execution")
        result = cli("fire", "release/deploy", "APPROVE", "--by", "ana")
        assert (result.code, result.out) == (0, "task release@1/deploy queued\n")
        assert "use the verb approve()" in cli("fire", "release/build", "approve").err
        live.portal.call(live.runtime._services.settled, 60)
    result = cli("fire", "release/build", "ENQUEUE")
    assert (result.code, "possible now: APPROVE, CANCEL, REJECT" in result.err) == (1, True)
    assert cli("fire", "release/build", "APPROVE", "--by", "bo").code == 4
    with running() as live:
        assert live.decided("build") == [("bo", None)]


def test_the_words_of_a_lifecycle_of_the_programs_own_are_judged_by_it(cli: Cli, folder: Path) -> None:
    with running(lifecycles=[DROPPED]) as live:
        job = live.submit(lifecycle="ours")
        live.portal.call(live.runtime._services.settled, 60)
    assert cli("fire", "release/build", "drop").code == 4  # which a stopped journal does not know
    assert cli("fire", "release/deploy", "begin").code == 4
    with running(lifecycles=[DROPPED]) as live:
        job = live.portal.call(lambda: live.runtime.job("release"))
        assert job.task("build").record.shown == "gone"
        assert "The runtime fires 'begin' itself" in cli("fire", "release/deploy", "begin").err


def test_it_is_one_command_for_machines_and_all_else(cli: Cli) -> None:
    told = " ".join(cli("fire", "--help").out.replace("│", " ").split())
    assert "Fire an event at a machine, job, task, worker or breaker" in told
    assert Fire("approve", by="ana").by == "ana"
