"""The report of the rows of an application's machines that its tests took, in a user's pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import takewhile
from pathlib import Path

import pytest
from tests.inner_pytest import pytest_with
from tests.test_public import modules_after

from callboard.actors.kernel import observing
from callboard.machines import Machine, State, Transition
from callboard.runtime.testing.coverage import Coverage

pytestmark = pytest.mark.slow

Run = Callable[..., "subprocess.CompletedProcess[str]"]

MACHINES = """
from callboard import Machine, State, Transition

WAYS = Machine(
    "ways", "new", [State("new"), State("end", terminal=True)],
    [
        *(Transition("new", way, "end") for way in ("simulated", "virtual", "real", "direct", "looked_at", "fails")),
        Transition("new", "refused", "end", guard=lambda facts, payload: False),
    ],
)
"""

TESTS = """
import anyio
import pytest
from callboard import Fire, MachineActor, Runtime, Task, Workstream
from callboard.errors import FireFailed, GuardRejected
from callboard.machines import TASK
from shop import WAYS

def on_event(facts, fire):
    if fire.event == "fails":
        raise RuntimeError("no")
    return facts

def test_simulated(simulation):
    simulation.ask(simulation.spawn(MachineActor(WAYS), name="a"), Fire("simulated"))
    with pytest.raises(FireFailed):
        simulation.ask(simulation.spawn(MachineActor(WAYS, on_event=on_event), name="b"), Fire("fails"))
    with pytest.raises(GuardRejected):
        simulation.ask(simulation.spawn(MachineActor(WAYS), name="c"), Fire("refused"))
    assert simulation.submit(Workstream("flow", tasks=[Task("a", command=["x"])])).run().ok

@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_virtual(virtual_runtime, backend):
    async def main():
        async with virtual_runtime() as runtime:
            await runtime.spawn(MachineActor(WAYS), name="a").ask(Fire("virtual"))

    anyio.run(main, backend=backend)

@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_real(backend):
    async def main():
        async with Runtime() as runtime:
            await runtime.spawn(MachineActor(WAYS), name="a").ask(Fire("real"))

    anyio.run(main, backend=backend)

def test_direct():
    assert WAYS.transition("new", event="direct").target == "end"
    assert WAYS.can_transition("new", "looked_at")
    with pytest.raises(GuardRejected):
        WAYS.transition("new", "refused")
"""

DOOR = """
from callboard import Machine, State, Transition

def door(name):
    return Machine(
        name, "open", [State("open"), State("shut", terminal=True)],
        [Transition("open", "knock", "open"), Transition("open", "shut", "shut")],
    )
"""

DOOR_TAKEN = """
from callboard import Fire, MachineActor
from doors import door

def test_both_rows(simulation):
    front = simulation.spawn(MachineActor(door("front")), name="front")
    simulation.ask(front, Fire("knock"))
    simulation.crash()
    simulation.ask(simulation.machine("front"), Fire("shut"))
"""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs pytest in a project of these files."""

    def run(files: dict[str, str], *options: str) -> subprocess.CompletedProcess[str]:
        for name, text in {"pytest.ini": "[pytest]\n", **files}.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run(
            [*pytest_with(), *options], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
            env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip

    return run


def told(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines of the report, without its title and the widths of its columns."""
    _, title, report = done.stdout.partition("transitions of your machines")
    assert title, done.stdout + done.stderr
    lines = (" ".join(line.split()) for line in report.partition("\n")[2].splitlines())
    return [line for line in takewhile(lambda line: not line.startswith("="), lines) if line]


def test_a_row_is_taken_by_every_runtime_and_by_asking_its_machine_and_by_nothing_else(run: Run) -> None:
    done = run({"shop.py": MACHINES, "test_shop.py": TESTS}, "--callboard-coverage")
    assert done.returncode == 0, done.stdout + done.stderr
    assert told(done) == [
        "machine taken rows missing",
        "ways 4 7 3",  # without TASK, which the module of the tests has under a name, and without its rows
        "not taken by any test: ways: new looked_at end",
        "not taken by any test: ways: new fails end",
        "not taken by any test: ways: new refused [<lambda>] end",
    ]


def test_a_machine_counts_that_is_declared_in_the_project_or_was_spawned(run: Run) -> None:
    installed = "lib/site-packages/other.py"
    done = run(
        {
            "doors.py": DOOR,
            installed: "from doors import door\nOTHER = door('other')\n",
            "test_doors.py": "import sys\nfrom pathlib import Path\n"
            "sys.path.append(str(Path(__file__).parent / 'lib' / 'site-packages'))\n"
            "import other\n"
            "from callboard import MachineActor\n"
            "from doors import door\n"
            "BACK = door('back')\n"
            "def test_nothing(simulation):\n"
            "    door('nowhere')\n"
            "    simulation.spawn(MachineActor(door('spawned')), name='a')\n",
        },
        "--callboard-coverage",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line for line in told(done) if line.endswith("2")] == ["back 0 2 2", "spawned 0 2 2"]


def test_a_row_that_no_test_took_fails_the_run_if_that_is_asked_for(run: Run) -> None:
    files = {"doors.py": DOOR + "BACK = door('back')\n", "test_doors.py": DOOR_TAKEN}
    done = run(files, "--callboard-coverage-fail")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    assert "not taken by any test: back: open knock open\nnot taken by any test: back: open shut shut\n" in done.stdout
    assert "the run fails because of these rows (--callboard-coverage-fail)" in done.stdout
    assert run(files, "--callboard-coverage-fail", "--collect-only").returncode == 0


def test_a_machine_that_is_made_again_after_a_crash_is_the_same(run: Run) -> None:
    done = run({"doors.py": DOOR, "test_doors.py": DOOR_TAKEN}, "--callboard-coverage-fail")
    assert done.returncode == 0, done.stdout + done.stderr
    assert told(done)[1:] == ["front 2 2 0"]


def test_machines_of_one_name_are_told_apart_by_where_they_are(run: Run) -> None:
    lift = DOOR.replace("knock", "ring")
    done = run(
        {
            "doors.py": DOOR + "FRONT = door('front')\n",
            "lifts.py": lift + "FRONT = door('front')\n",
            "shop.py": "from lifts import FRONT as LIFT\nfrom doors import FRONT, door\nBACK = door('back')\n",
            "test_doors.py": "import shop\n"
            "from callboard import Machine, MachineActor, State, Transition\n"
            "def test_nothing(simulation):\n"
            "    for n in (1, 2):\n"
            "        rows = [Transition('a', f'go{n}', 'b')]\n"
            "        machine = Machine('front', 'a', [State('a'), State('b', terminal=True)], rows)\n"
            "        simulation.spawn(MachineActor(machine), name=f'm{n}')\n",
        },
        "--callboard-coverage",
    )
    assert done.returncode == 0, done.stdout + done.stderr
    lines = told(done)
    assert sorted(lines[1:6]) == [
        "back 0 2 2", "front (doors:FRONT) 0 2 2", "front (in no module) #1 0 1 1", "front (in no module) #2 0 1 1",
        "front (lifts:FRONT) 0 2 2",
    ]  # fmt: skip
    assert "not taken by any test: front (lifts:FRONT): open ring open" in lines


def test_a_run_without_machines_says_so(run: Run) -> None:
    done = run({"test_one.py": "def test_one(): pass\n"}, "--callboard-coverage-fail")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no Machine of yours was loaded" in done.stdout


def test_it_is_refused_where_other_processes_run_the_tests(run: Run) -> None:
    files = {"test_one.py": "def test_one(): pass\n"}
    done = run(files, "--callboard-coverage", "-n", "1")
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "leave out -n" in done.stderr
    assert run(files, "--callboard-coverage", "-n", "0").returncode == 0


def test_nothing_listens_unless_it_is_asked_for(run: Run) -> None:
    test = (
        "from callboard.actors.kernel import observing\n"
        "from callboard.actors.machines.kind import MachineKind\n"
        "from callboard.machines import Machine\n"
        "def test_nothing():\n"
        "    assert observing.observe_transition is None\n"
        "    assert not hasattr(Machine.transition, '__wrapped__')\n"
        "    assert not hasattr(MachineKind.__init__, '__wrapped__')\n"
    )
    done = run({"test_one.py": test})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "transitions of your machines" not in done.stdout
    assert "callboard.runtime.testing.coverage" not in modules_after("import callboard.testing")


def test_another_who_listens_goes_on_hearing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    door = Machine("door", "open", [State("open")], [Transition("open", "knock", "open")], endless=True)
    heard: list[object] = []

    def hear(machine: Machine, row: Transition) -> None:
        heard.append((machine, row))

    monkeypatch.setattr(observing, "observe_transition", hear)
    coverage, before = Coverage(tmp_path), Machine.transition
    with coverage.listening():
        assert observing.observe_transition is not None
        observing.observe_transition(door, door.transitions[0])
    assert observing.observe_transition is hear
    assert Machine.transition is before
    assert heard == [(door, door.transitions[0])]
    coverage.finish()
    assert [line.split() for line in coverage.table()][1:] == [["door", "1", "1", "0"]]
    assert not [*coverage.missing()]
