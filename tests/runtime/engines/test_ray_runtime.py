"""Tasks on a Ray cluster, as in an application: placed by capability, lost and run again, with nothing left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from importlib import util
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self

import anyio
import pytest
from tests.ports import free_port
from tests.processes import runs
from tests.runtime.engines import ray_bodies as bodies
from tests.waiting import until

from callboard import Defaults, HealthChecks, Notice, Retry, Runtime, Task, Worker, Workstream
from callboard.errors import SpecificationError
from callboard.runtime.engines.ray.cluster import RayUnavailable
from callboard.runtime.handles.jobs import JobHandle
from callboard.runtime.handles.workers import check_workers

cluster = pytest.mark.cluster
pytestmark = pytest.mark.anyio
HERE = (Worker("loop", engine="loop"), Worker("threads", engine="thread"), Worker("commands", engine="command"))
FAR = Worker("far", engine="ray", capacity=8, capabilities=["far"])


@pytest.fixture
def anyio_backend() -> str:
    """One loop: the engine's contract is held on several."""
    return "asyncio"


async def first_run(folder: Path, count: int = 1) -> list[list[int]]:
    """Wait until a body has noted so many runs: the attempt, its process, and that one's parent."""
    file = folder / "runs"
    with anyio.fail_after(300):  # starting an actor on a busy machine takes a minute
        while not file.exists() or file.read_text().count("\n") < count:
            await anyio.sleep(0.01)
    return [[int(number) for number in line.split()] for line in file.read_text().splitlines()]


async def routable(job: JobHandle, name: str, *, yes: bool) -> str | None:
    await until(lambda: job.task(name).record.routable is yes)
    return job.task(name).record.reason


@cluster
async def test_workers_here_and_there_are_chosen_by_capability(ray_here: Any, tmp_path: Path) -> None:
    async with Runtime(tmp_path / "j.db", workers=(*HERE, FAR), secrets={"KEY": "rosebud-7"}) as runtime:
        runtime.task(bodies.host, name="named.host", aliases=["shop.old:host"])
        for side in ("left", "right"):
            (tmp_path / side).mkdir()
            text = f"def go():\n    return {side!r}\nasync def a_go():\n    return go()\n"
            (tmp_path / side / "steps.py").write_text(text)
        results = ["sh", "-c", 'cat "$CALLBOARD_RESULTS"; echo; echo "$CALLBOARD_TASK $KEY"; exit 3']
        tasks = [
            Task("here", run=bodies.where),
            Task("there", run=bodies.where, capabilities=["far"]),
            Task("loop", run=bodies.where_on_loop, capabilities=["far"]),
            Task("named", run="named.host", capabilities=["far"]),
            Task("named before", run="shop.old:host", engine="ray"),
            *(
                Task(f"{side}-{go}", run=f"steps@{tmp_path / side}:{go}", engine="ray")
                for side in ("left", "right")
                for go in ("go", "a_go")
            ),
            Task("told", run=bodies.tells_secret, engine="ray", secrets=["KEY"]),
            Task("saved", run=bodies.saves, engine="ray", retry=Retry(max_attempts=2, base_delay=0.01)),
            Task(
                "command", command=results, capabilities=["far"], depends_on=["there"], expected_exit_codes=[3],
                secrets=["KEY"],
            ),
        ]  # fmt: skip
        job = await runtime.submit(Workstream("w", tasks=tasks), id="j")
        outcome = (await job.wait()).raise_for_state()
        found = outcome.results
        assert found["here"]["pid"] == os.getpid()
        assert found["there"]["pid"] != os.getpid()
        assert found["there"]["parent"] == found["loop"]  # the actor: its process has the body
        assert found["named"] == found["named before"] == found["there"]["host"]
        assert [found[f"{side}-{go}"] for side in ("left", "right") for go in ("go", "a_go")] == [
            "left", "left", "right", "right",
        ]  # fmt: skip
        assert found["told"] == "key ***"
        assert found["saved"] == [{"row": 7}, "half"]
        assert found["command"]["exit_code"] == 3
        said = (tmp_path / "j.db.output" / "j" / "1" / "command.1.log").read_text()
        assert f'"pid":{found["there"]["pid"]}' in said
        assert said.endswith("command ***\n")
        assert (tmp_path / "j.db.output" / "j" / "1" / "told.1.log").read_text() == "the key is ***\n"
        worker = runtime.worker("far")
        assert (worker.engine, worker.state, worker.capabilities) == ("ray", "idle", ["far"])
    await until(lambda: not runs(found["loop"]))


@cluster
async def test_an_async_body_there_submits_and_asks_as_one_here(ray_here: Any) -> None:
    async with Runtime(workers=(Worker("far", engine="ray"),)) as runtime:  # the child has its parent's slot
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=bodies.asks)]), id="j")
        await until(runtime.approvals)
        await job.task("a").approve(by="ana")
        outcome = (await job.wait()).raise_for_state()
        value = outcome.results["a"]
        assert (value["id"], value["state"], value["by"]) == ("j/a/leaf", "completed", ["ana"])


@cluster
async def test_a_frozen_worker_misses_its_probes_and_what_it_ran_runs_elsewhere(ray_here: Any, tmp_path: Path) -> None:
    workers = (Worker("far", engine="ray", count=2),)
    # The other worker, which answers, must not miss them all on a machine that is busy.
    checks = HealthChecks(interval=0.5, misses=60)
    async with Runtime(health_checks=checks, workers=workers) as runtime:
        task = Task("a", run=bodies.noted_on_loop, engine="ray", args={"folder": str(tmp_path)})
        job = await runtime.submit(Workstream("w", tasks=[task], defaults=Defaults(recovery_timeout=0.5)), id="j")
        [[_, pid, _]] = await first_run(tmp_path)
        seen = runtime.events(notices=False)
        os.kill(pid, signal.SIGSTOP)
        try:
            found = await first_run(tmp_path, 2)
            assert found[1][1] != pid
            await until(lambda: not runs(pid))
        finally:
            (tmp_path / "end").touch()
            if runs(pid):
                os.kill(pid, signal.SIGCONT)
        outcome = await job.wait()
        assert outcome.results["a"] == "attempt 2"
        seen.close()
        rows = [(event.kind, event.to_state) async for event in seen]
        assert ("worker", "unresponsive") in rows
        assert ("task", "recovering") in rows


@cluster
async def test_an_actor_that_cannot_answer_is_looked_at_and_one_that_works_is_left_alone(ray_here: Any) -> None:
    notices: list[Notice] = []
    checks = HealthChecks(interval=2, misses=3)
    runtime = Runtime(workers=(Worker("far", engine="ray"),), health_checks=checks)
    runtime.on_trouble = notices.append
    async with runtime:
        worker = runtime.worker("far")
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=bodies.computes, engine="ray", timeout=600)]))
        await until(lambda: "worker_busy" in [notice.event for notice in notices])
        seen = worker.last_seen
        await until(lambda: worker.last_seen > seen + 15)  # the actor's lease is 8 s, and three rounds are 6
        assert (worker.state, worker.record.run) == ("busy", 1)
        assert (job.task("a").record.state, job.task("a").record.attempt) == ("running", 1)
        await job.cancel(force=True)
    assert [notice.event for notice in notices].count("worker_busy") == 1


@cluster
async def test_when_a_node_dies_its_worker_is_unresponsive_at_once_and_its_work_runs_on_another(
    ray_here: Any, tmp_path: Path
) -> None:
    node = ray_here.add_node(num_cpus=1, resources={"island": 1}, object_store_memory=80_000_000)
    async with Runtime(workers=[Worker("far", engine="ray", resources={"island": 0.5}, capabilities=["x"])]) as runtime:
        task = Task("a", run=bodies.noted_on_loop, capabilities=["x"], args={"folder": str(tmp_path)})
        job = await runtime.submit(Workstream("w", tasks=[task]), id="j")
        [[_, pid, _]] = await first_run(tmp_path)
        seen = runtime.events(notices=False)
        ray_here.remove_node(node, allow_graceful=False)
        told: list[tuple[str, str | None, str]] = []
        with anyio.fail_after(300):
            async for event in seen:
                told.append((event.kind, event.from_state, event.to_state))
                if event.kind == "task" and event.to_state == "queued":
                    break
        await until(lambda: not runs(pid))
        assert told.index(("worker", "busy", "unresponsive")) < told.index(("task", "running", "recovering"))
        assert ("worker", "unresponsive", "failed") in told
        # No node has the capability: no worker can run the task until one has it.
        reason = await routable(job, "a", yes=False)
        assert "no node of the Ray cluster" in (reason or "")
        assert "island 0.5" in (reason or "")
        await runtime.start_worker(Worker("near", engine="ray", capabilities=["x"]))
        (tmp_path / "end").touch()
        outcome = await job.wait()
        assert outcome.results["a"] == "attempt 2"


@cluster
async def test_what_the_cluster_has_not_is_unroutable_before_anything_is_submitted(ray_here: Any) -> None:
    workers = (*HERE, Worker("gpu", engine="ray", resources={"GPU": 1}, labels={"zone": "a"}))
    async with Runtime(workers=workers) as runtime:
        tasks = [Task("a", run=bodies.where, capabilities=["GPU", "zone=a"], unroutable_timeout=0.2)]
        outcome = await (await runtime.submit(Workstream("w", tasks=tasks))).wait()
        assert outcome.state == "failed"
        assert outcome.tasks["a"].error_type == "unroutable_timeout"
        reason = outcome.tasks["a"].reason or ""
        assert "worker 'gpu' cannot be placed: no node of the Ray cluster" in reason
        assert "has GPU 1 and zone=a" in reason
        assert runtime.worker("gpu").state == "failed"


@cluster
async def test_nothing_outlives_a_worker_that_is_terminated(ray_here: Any, tmp_path: Path) -> None:
    async with Runtime(workers=(FAR,)) as runtime:
        script = f"echo $$ > {tmp_path}/leader; (setsid sleep 600 & echo $! > {tmp_path}/child; wait)"
        tasks = [
            Task("command", command=["sh", "-c", script], engine="ray"),
            Task("process", run=bodies.starts_something, engine="ray"),
        ]
        job = await runtime.submit(Workstream("w", tasks=tasks, defaults=Defaults(max_losses=1)), id="j")
        await until(lambda: (tmp_path / "child").exists() and (tmp_path / "child").read_text())
        await until(lambda: job.task("process").record.details is not None)
        pids = [int((tmp_path / name).read_text()) for name in ("leader", "child")]
        pids.append(int(job.task("process").record.details or 0))
        assert all(map(runs, pids))
        await runtime.worker("far").terminate()
        await until(lambda: not any(map(runs, pids)))


@cluster
async def test_after_a_kill_of_the_runtime_its_actors_end_and_nothing_runs_twice(ray_here: Any, tmp_path: Path) -> None:
    program = f"""
import anyio
from callboard import Runtime, Task, Worker, Workstream
from tests.runtime.engines import ray_bodies as bodies
async def main():
    workers = [Worker("far", engine="ray")]
    async with Runtime({str(tmp_path / "j.db")!r}, workers=workers, ray={ray_here.address!r}) as runtime:
        tasks = [Task("a", run=bodies.noted, engine="ray", args={{"folder": {str(tmp_path)!r}}})]
        await (await runtime.submit(Workstream("w", tasks=tasks), id="j")).wait()
anyio.run(main)
"""
    with subprocess.Popen([sys.executable, "-c", program], cwd=Path.cwd(), env=environment()) as process:
        try:
            [[_, pid, actor]] = await first_run(tmp_path)
        finally:
            process.kill()
    await until(lambda: not runs(pid) and not runs(actor))
    (tmp_path / "end").touch()
    async with Runtime(tmp_path / "j.db", workers=[Worker("far", engine="ray")]) as runtime:
        outcome = await (await runtime.job("j")).wait()
        assert outcome.results["a"] == "attempt 2"
        assert len(await first_run(tmp_path, 2)) == 2


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, _paths()))}


def _paths() -> Sequence[Path]:
    root = Path(__file__).parents[3]
    return root / "src", root


async def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(util, "find_spec", lambda name: None)
    with pytest.raises(RayUnavailable, match=r"pip install 'callboard\[ray\]'"):
        async with Runtime(workers=(FAR,)):
            pass


async def test_a_runtime_without_ray_says_how_to_have_it() -> None:
    async with Runtime(workers=HERE) as runtime:
        with pytest.raises(SpecificationError, match=r"ray=RayCluster"):
            await runtime.start_worker(FAR)


@pytest.mark.parametrize(
    ("worker", "says"),
    [
        (Worker("w", engine="loop", resources={"CPU": 1}), "is for workers on a cluster"),
        (Worker("w", engine="loop", labels={"a": "b"}), "is for workers on a cluster"),
        (Worker("w", engine="process", count=2), "is for workers on a cluster"),
        (Worker("w", engine="ray", count=0), "must be at least 1"),
        (Worker("w", engine="ray", count=20_000), "must be at most 10,000"),
        (Worker("w", engine="ray", resources={"CPU": 0}), "a number above 0"),
        (Worker("w", engine="ray", labels={"": "x"}), "without a name"),
        (Worker("w", engine="ray", recycle_after=0), "at least 1"),
    ],
)
async def test_workers_that_cannot_be_are_refused(worker: Worker, says: str) -> None:
    with pytest.raises(SpecificationError, match=says):
        check_workers([*HERE[:1], worker])


def test_a_worker_on_ray_stands_for_as_many_as_it_says() -> None:
    each = Worker("far", engine="ray", capacity=4, count=2, resources={"GPU": 1}, labels={"zone": "a"}).each()
    assert [(one.name, one.capacity, one.count) for one in each] == [("far-1", 4, None), ("far-2", 4, None)]
    assert each[0].abilities() == ["GPU", "zone=a"]


class Island:
    """A node of the cluster in a network of its own, whose one way to the others can be cut."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._name = f"cb{os.getpid()}"
        self._node: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        name, here = self._name, f"{self._name}h"
        steps = [
            f"netns add {name}", f"link add {here} type veth peer name eth0 netns {name}",
            f"addr add 10.213.7.1/30 dev {here}", f"link set {here} up", f"-n {name} addr add 10.213.7.2/30 dev eth0",
            f"-n {name} link set lo up", f"-n {name} link set eth0 up", f"-n {name} route add default via 10.213.7.1",
        ]  # fmt: skip
        try:
            for step in steps:
                subprocess.run(["ip", *step.split()], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            pytest.skip(f"this machine gives no network of its own to a test: {error}")
        words = f"start --address {self._address} --node-ip-address 10.213.7.2 --num-cpus 1 --block".split()
        ray = "import sys; from ray.scripts.scripts import main; sys.argv[0] = 'ray'; sys.exit(main())"
        more = ["--resources", '{"isle": 1}', "--object-store-memory", "80000000", "--disable-usage-stats"]
        self._node = subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", ray, *words, *more], env=environment(),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        return self

    def cut(self) -> None:
        subprocess.run(["ip", "link", "set", f"{self._name}h", "down"], check=True)

    def __exit__(self, *_: object) -> None:
        for pid in subprocess.run(["ip", "netns", "pids", self._name], capture_output=True, check=False).stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        if self._node is not None:
            self._node.wait()
        subprocess.run(["ip", "netns", "del", self._name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{self._name}h"], capture_output=True, check=False)


@cluster
async def test_a_node_that_is_cut_off_ends_what_it_runs_before_that_is_run_elsewhere(
    ray_here: Any, tmp_path: Path
) -> None:
    with Island(ray_here.address) as island:
        apart = Worker("apart", engine="ray", resources={"isle": 0.5}, capabilities=["x"])
        # 10 s after the last message of the runtime the actor ends itself. Its work is lost long after that, so that
        # the actor has ended on a busy machine, too.
        health = HealthChecks(interval=2.5, misses=3)
        async with Runtime(workers=[apart], health_checks=health) as runtime:
            task = Task("a", run=bodies.noted, capabilities=["x"], args={"folder": str(tmp_path)})
            stream = Workstream("w", tasks=[task], defaults=Defaults(recovery_timeout=45))
            job = await runtime.submit(stream, id="j")
            [[_, body, actor]] = await first_run(tmp_path)
            assert runs(body)
            island.cut()
            here = {"node:__internal_head__": 0.01}  # Ray does not know yet of the cut
            await runtime.start_worker(Worker("near", engine="ray", capabilities=["x"], resources=here))
            await until(lambda: job.task("a").record.state == "recovering")
            await until(lambda: not runs(body) and not runs(actor))
            assert job.task("a").record.lost_attempts == 0
            (tmp_path / "end").touch()
            with anyio.fail_after(300):
                outcome = await job.wait()
            assert outcome.results["a"] == "attempt 2"
            assert len(await first_run(tmp_path, 2)) == 2


HEAD_STARTS = 600
"""Seconds that the head of a cluster may take to start: it starts five programs, all at once."""


@contextmanager
def head_at(port: int, folder: Path) -> Iterator[None]:
    """The head of a Ray cluster of its own, until it is killed."""
    place = folder / str(time.monotonic_ns())
    line = [
        str(Path(sys.executable).with_name("ray")), "start", "--head", f"--port={port}", "--num-cpus=2",
        "--include-dashboard=false", "--object-store-memory=80000000", f"--temp-dir={place}", "--block",
    ]  # fmt: skip
    log = Path(f"{place}.log")
    with log.open("wb") as file, subprocess.Popen(line, stdout=file, stderr=file, start_new_session=True) as head:
        try:
            end = time.monotonic() + HEAD_STARTS
            while "Ray runtime started" not in log.read_text():
                assert time.monotonic() < end, f"the head did not start within {HEAD_STARTS} s: {log.read_text()}"
                assert head.poll() is None, log.read_text()
                time.sleep(0.1)
            yield
        finally:
            with suppress(ProcessLookupError):  # the cluster may have failed to start
                os.killpg(head.pid, signal.SIGKILL)  # the head has a session of its own


@cluster
async def test_a_head_that_goes_away_ends_nothing_here_and_its_workers_are_there_again_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a program of its own: this one is connected to Ray itself where another test has needed that."""
    pytest.importorskip("ray")
    for name, value in {
        "RAY_gcs_rpc_server_reconnect_timeout_s": "3", "RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": f"{HEAD_STARTS}",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    with TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as name, ExitStack() as stack:
        folder, port = Path(name), free_port()
        with head_at(port, folder):
            program = [sys.executable, "-m", "tests.runtime.engines.ray_survivor", f"127.0.0.1:{port}"]
            said = folder / "said"
            file = stack.enter_context(said.open("wb"))
            child = stack.enter_context(subprocess.Popen(program, stdout=file, cwd=Path(__file__).parents[3]))
            stack.callback(child.kill)
            await until(lambda: said.read_text() == "far completed\n" or child.poll() is not None)
        expected = "far completed\naway: failed\nhere completed\n"
        await until(lambda: said.read_text() == expected or child.poll() is not None)
        with head_at(port, folder):
            await until(lambda: child.poll() is not None)
        assert (said.read_text(), child.returncode) == (f"{expected}back\nfar completed\n", 0)
