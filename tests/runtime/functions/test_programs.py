"""Functions of `__main__`: only the program that defines them runs them."""

from __future__ import annotations

import subprocess
import sys
import zipapp
from pathlib import Path

import anyio
import pytest
from tests.forks import Forks
from tests.waiting import until

from callboard import Check, Condition, Runtime, Task, VirtualClock, Workstream
from callboard.errors import JobExists, SpecificationError
from callboard.runtime.functions.import_paths import find, located, same_names
from callboard.runtime.functions.registry import Bodies, BodyNotFound

pytestmark = pytest.mark.slow

PROGRAM = """
import os, sys, anyio
from pathlib import Path
import msgspec
from callboard import (
    Check, Condition, Fire, Hook, Machine, MachineActor, Runtime, State, Task, Transition, Workstream,
)

JOURNAL = os.environ.get("JOURNAL", "j.db")

def work():
    return "WHO"

async def a_work():
    return "WHO"

def note(task=None):
    with open("noted", "a") as notes:
        notes.write("WHO ")
    return True

class Facts(msgspec.Struct):
    n: int = 0

def count(facts, fire):
    return Facts(facts.n + 1)

STATES = [State("on", bounded_by="us"), State("off", terminal=True)]
MACHINE = Machine("lamp", "on", STATES, [Transition("on", "press", "on"), Transition("on", "break", "off")])

async def main():
    async with Runtime(JOURNAL) as runtime:
        match sys.argv[1] if len(sys.argv) > 1 else "":
            case "submit":
                run = {"loop": a_work}.get(sys.argv[2], work)
                task = Task("t", run=run, engine=sys.argv[2], wait="0.3s")
                await runtime.submit(Workstream("w", tasks=[task]), id="j")
                os._exit(9)
            case "again":
                if sys.argv[2:]:
                    runtime.task(aliases=[sys.argv[2]])(work)
                try:
                    run = [Task("t", run=work, timeout=60, checks=[Check(run=note)])]
                    job = await runtime.submit(Workstream("w", tasks=run), id="j")
                    print(job.state if job.ended else (await job.wait()).state)
                except ValueError as error:
                    print(error)
                return
            case "parts":
                first = Task("first", command=["true"], wait="0.3s")
                asked = Task(
                    "t", command=["true"], depends_on=["first"], condition=Condition(run=note), checks=[Check(run=note)]
                )
                said = Workstream("w", tasks=[first, asked], checks=[Check(run=note)], on_completed=[Hook(run=note)])
                await runtime.submit(said, id="j")
                os._exit(9)
            case "machine":
                runtime.spawn(MachineActor(MACHINE, Facts(), on_event=count, on_enter={"*": note}), name="lamp")
                await runtime.machine("lamp").ask(Fire("press"))
                os._exit(9)
            case "fire":
                try:
                    await runtime.machine("lamp").ask(Fire("press"))
                    print("pressed", runtime.machine("lamp").facts)
                except Exception as error:
                    print(type(error).__name__)
                return
        job = await runtime.job("j")
        with anyio.move_on_after(float(os.environ.get("PATIENCE", "60"))):
            while job.task("t").record.routable or os.environ.get("STAY"):
                with anyio.move_on_after(0.05):
                    print((await job.wait()).results["t"])
                    return
        print("waits:", job.task("t").record.reason)

if __name__ == "__main__":
    anyio.run(main)
"""


def write(folder: Path, name: str, who: str | None = None) -> Path:
    path = folder / f"{name}.py"
    path.write_text(PROGRAM.replace("WHO", who or name))
    return path


def run(*words: object, cwd: Path, check: bool = False, **variables: str) -> str:
    """Return the output of the program. A program named by the whole path of its file is a fork."""
    if isinstance(words[0], Path) and words[0].suffix == ".py" and not variables:
        with Forks(cwd) as forks:
            ended = forks.run(words[0], *words[1:], cwd=cwd)
            assert not check or ended.returncode == 0, ended.stderr
            return ended.stdout.strip() or ended.stderr.strip()
    environment = {"PATH": "/usr/bin:/bin", "JOURNAL": str(cwd / "j.db"), **variables}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=cwd, env=environment, capture_output=True, text=True, timeout=600,
        check=check,
    )  # fmt: skip
    return done.stdout.strip() or done.stderr.strip()


@pytest.mark.parametrize("engine", ["thread", "loop", "process"])
def test_another_program_with_such_a_function_leaves_it_waiting(tmp_path: Path, engine: str) -> None:
    mine = write(tmp_path, "invoices")
    (tmp_path / "elsewhere").mkdir()
    run(mine, "submit", engine, cwd=tmp_path)
    for other in (write(tmp_path, "reminders"), write(tmp_path / "elsewhere", "invoices", "another")):
        told = run(other, cwd=tmp_path)
        assert told.startswith("waits: unroutable: its function cannot be found here: '__main__:"), told
        assert str(mine) in told
        assert str(other) in told
        assert "@runtime.task(name=...)" in told
    assert run(mine, cwd=tmp_path) == "invoices"


def test_the_same_file_is_the_same_program_however_it_is_called(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    mine = write(real, "crates")
    (tmp_path / "link.py").symlink_to(mine)
    (tmp_path / "folder").symlink_to(real)
    for first, then in (
        ("real/crates.py", "link.py"),
        ("link.py", "./real/../folder/crates.py"),
        ("folder/crates.py", mine),
    ):
        run(first, "submit", "process", cwd=tmp_path)
        write(real, "crates", "edited")
        assert run(then, cwd=tmp_path) == "edited"
        (tmp_path / "j.db").unlink()


def test_a_file_behind_a_link_that_was_turned_is_the_same_program(tmp_path: Path) -> None:
    for release in ("one", "two"):
        (tmp_path / release).mkdir()
        write(tmp_path / release, "crates", release)
    current = tmp_path / "current"
    current.symlink_to("one")
    run("current/crates.py", "submit", "thread", cwd=tmp_path)
    current.unlink()
    current.symlink_to("two")
    assert run("current/crates.py", cwd=tmp_path) == "two"


def test_a_file_that_was_moved_is_another_program_unless_a_link_stays(tmp_path: Path) -> None:
    mine = write(tmp_path, "crates")
    run(mine, "submit", "thread", cwd=tmp_path)
    moved = mine.rename(tmp_path / "boxes.py")
    assert str(mine) in run(moved, cwd=tmp_path)
    mine.symlink_to(moved)
    assert run(moved, cwd=tmp_path) == "crates"


def test_a_moved_script_that_submits_the_same_again_is_told_the_cause_and_the_way_out(tmp_path: Path) -> None:
    mine = write(tmp_path, "crates")
    assert run(mine, "again", cwd=tmp_path) == "completed"
    moved = mine.rename(tmp_path / "boxes.py")
    told = run(moved, "again", cwd=tmp_path)
    was = f"__main__@{mine}:note"
    assert "submitted with the same workstream (completed now) except for the places of its functions" in told
    assert f"its function 'note' (and 1 more) was of the program {mine}, and is '__main__@{moved}:note' here" in told
    assert "make a link where it was" in told
    assert f"@runtime.task(aliases=[{was!r}])" in told
    assert "its function 'note' was" in run(moved, "again", f"__main__@{mine}:work", cwd=tmp_path)
    mine.symlink_to(moved)
    assert run(moved, "again", cwd=tmp_path) == run(mine, "again", cwd=tmp_path) == "completed"


def test_what_a_moved_script_left_says_how_it_goes_on(tmp_path: Path) -> None:
    mine = write(tmp_path, "crates")
    run(mine, "submit", "thread", cwd=tmp_path)
    moved = mine.rename(tmp_path / "boxes.py")
    told = run(moved, cwd=tmp_path)
    assert f"{mine}, which does not exist any more, and this one is {moved}. If it was moved, make a link" in told
    assert f"@runtime.task(aliases=['__main__@{mine}:work'])" in told


def test_an_archive_is_the_program_and_not_gone(tmp_path: Path) -> None:
    for name in ("crates", "boxes"):
        (tmp_path / name).mkdir()
        write(tmp_path / name, "__main__", name)
        zipapp.create_archive(tmp_path / name)
    run("crates.pyz", "submit", "process", cwd=tmp_path)
    told = run("boxes.pyz", cwd=tmp_path)
    assert f"another program, {tmp_path}/crates.pyz/__main__.py, and this one is" in told
    assert run("./crates.pyz", cwd=tmp_path) == "crates"
    run("crates.pyz", "submit", "thread", cwd=tmp_path, JOURNAL=str(tmp_path / "k.db"))
    (tmp_path / "crates.pyz").rename(tmp_path / "kegs.pyz")
    told = run("kegs.pyz", cwd=tmp_path, JOURNAL=str(tmp_path / "k.db"))
    assert f"{tmp_path}/crates.pyz/__main__.py, which does not exist any more" in told


@pytest.mark.parametrize("first", ["-c", "-m"])
def test_the_same_workstream_of_another_kind_of_program_is_told_so(tmp_path: Path, first: str) -> None:
    (tmp_path / "shop").mkdir()
    mine = write(tmp_path / "shop", "jobs")
    begun = [first, mine.read_text() if first == "-c" else "shop.jobs"]
    assert run(*begun, "again", cwd=tmp_path) == "completed"
    told = run(mine, "again", cwd=tmp_path)
    assert "except for the places of its functions" in told
    assert (
        "was not read from a file" if first == "-c" else f"'shop.jobs:note' (and 1 more) is '__main__@{mine}:note'"
    ) in told


def test_what_a_launcher_executes_as_its_own_is_not_kept_as_the_launchers(tmp_path: Path) -> None:
    """Two such scripts have one `__main__` and one name for their functions: either could run what the other left."""
    (tmp_path / "launch.py").write_text(
        "import sys\nsys.argv.pop(0)\nexec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'))\n"
    )
    script = write(tmp_path, "invoices")
    told = run(tmp_path / "launch.py", script, "submit", "thread", cwd=tmp_path)
    assert f"'work' is written in {script}, which {tmp_path / 'launch.py'} has executed as its own" in told
    assert "runpy.run_path(path, run_name='__main__')" in told
    run(script, "submit", "thread", cwd=tmp_path)
    assert run(script, cwd=tmp_path) == "invoices"


def test_a_program_under_a_profiler_is_told_what_to_do(tmp_path: Path) -> None:
    """As `python -m cProfile` and `python -m trace` do it: with a namespace that no module has."""
    (tmp_path / "profiled.py").write_text(
        "import sys\nsys.argv.pop(0)\n"
        "exec(compile(open(sys.argv[0]).read(), sys.argv[0], 'exec'), {'__name__': '__main__'})\n"
    )
    script = write(tmp_path, "invoices")
    told = run("-m", "profiled", script, "submit", "thread", cwd=tmp_path)
    for text in (
        f"'work' is written in {script}, which python -m profiled has executed as its own",
        "Put the function in a module that the script imports, or register it (@runtime.task)",
        "`with cProfile.Profile() as profile:`",
    ):
        assert text in told


def test_a_module_that_is_run_keeps_its_real_name(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    write(tmp_path / "shop", "jobs")
    run("-m", "shop.jobs", "submit", "process", cwd=tmp_path)
    other = write(tmp_path, "others")
    assert run(other, cwd=tmp_path) == "jobs"  # it can be imported: its own code runs
    (tmp_path / "j.db").unlink()
    run("-m", "shop.jobs", "submit", "process", cwd=tmp_path)
    assert run("-m", "shop.jobs", cwd=tmp_path) == "jobs"
    (tmp_path / "j.db").unlink()
    run(tmp_path / "shop" / "jobs.py", "submit", "process", cwd=tmp_path)
    assert run("-m", "shop.jobs", cwd=tmp_path) == "jobs"
    (tmp_path / "j.db").unlink()
    run("-m", "shop.jobs", "submit", "process", cwd=tmp_path)
    assert run(tmp_path / "shop" / "jobs.py", cwd=tmp_path, PYTHONPATH=str(tmp_path)) == "jobs"


ORDERS = """
import os, signal, sys, time, anyio
from functools import partial
from pathlib import Path
from callboard import Runtime, Task, TaskContext, Workstream, step

class Refused(Exception):
    pass

def ran(what):
    with open("ran", "a") as notes:
        notes.write(f"{what} ")
    return what

@step
def charge(n):
    return ran(n)

def pack(n):
    return ran(n)

class Till:
    def ring(self, n):
        return ran(n)

def refuse():
    ran("no")
    raise Refused("no")

if "OLD" in os.environ:  # as an older version stored it
    charge.path = "__main__:charge"

def process(task: TaskContext):
    got = [charge(1), task.step_blocking(pack, 2), task.step_blocking(Till().ring, 3)]
    got.append(task.step_blocking(partial(pack, 4)))
    try:
        task.step_blocking(refuse)
    except Refused as error:
        got.append(str(error))
    if not Path("died").exists():
        Path("died").touch()
        os.kill(int(os.environ["RUNTIME"]), signal.SIGKILL)
        while True:
            time.sleep(1)
    return got

async def main():
    os.environ["RUNTIME"] = str(os.getpid())
    async with Runtime("j.db") as runtime:
        if Path("died").exists():
            job = await runtime.job("j")
        else:
            task = Task("t", run=process, engine=os.environ["ENGINE"])
            job = await runtime.submit(Workstream("w", tasks=[task]), id="j")
        outcome = await job.wait()
        print(outcome.results or outcome.tasks["t"].last_error)

if __name__ == "__main__":
    anyio.run(main)
"""
WAYS = {
    "as a module": ["-m", "orders"],
    "by its file": ["orders.py"],
    "imported": ["-c", "import anyio, orders; anyio.run(orders.main)"],
    "by the command line": ["-c", "from callboard.runtime.cli import main; main()", "resume", "--journal", "j.db"],
}


@pytest.mark.parametrize(
    ("first", "then", "engine"),
    [
        ("as a module", "by the command line", "process"), ("as a module", "imported", "thread"),
        ("as a module", "by its file", "process"), ("imported", "as a module", "process"),
        ("by its file", "as a module", "thread"), ("by its file", "as a module", "process"),
    ],
)  # fmt: skip
def test_the_steps_of_a_flow_are_found_again_however_its_module_is_started(
    tmp_path: Path, first: str, then: str, engine: str
) -> None:
    (tmp_path / "orders.py").write_text(ORDERS)
    run(*WAYS[first], cwd=tmp_path, ENGINE=engine)
    assert (tmp_path / "died").exists()
    run(*WAYS[then], cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert run(*WAYS["as a module"], cwd=tmp_path) == "{'t': [1, 2, 3, 4, 'no']}"
    assert (tmp_path / "ran").read_text() == "1 2 3 4 no "


def test_the_steps_that_an_older_version_kept_of_a_program_are_found_again(tmp_path: Path) -> None:
    (tmp_path / "orders.py").write_text(ORDERS)
    run(*WAYS["as a module"], cwd=tmp_path, ENGINE="thread", OLD="1")
    assert run(*WAYS["imported"], cwd=tmp_path) == "{'t': [1, 2, 3, 4, 'no']}"


def test_names_are_the_same_wherever_the_module_of_a_program_was() -> None:
    mine = "shop.orders:charge"
    for kept in (
        mine,
        "__main__:charge",
        "__mp_main__:charge",
        "__main__@/srv/shop/orders.py:charge",
        "shop.orders@/srv:charge",
    ):
        assert same_names(kept, mine)
        assert same_names(mine, kept)
    for kept in ("shop.other:charge", "shop.orders:Till.charge", "__main__:pay"):
        assert not same_names(kept, mine)


def test_a_program_that_has_imported_the_file_has_its_functions(tmp_path: Path) -> None:
    mine = write(tmp_path, "crates")
    (tmp_path / "worker.py").write_text("import crates\n" + PROGRAM.replace("WHO", "worker"))
    run(mine, "submit", "thread", cwd=tmp_path)
    assert run("worker.py", cwd=tmp_path) == "crates"


def test_a_program_without_a_file_is_its_process(tmp_path: Path) -> None:
    text = PROGRAM.replace("WHO", "typed")
    run("-c", text, "submit", "thread", cwd=tmp_path)
    told = run("-c", text, cwd=tmp_path)
    assert "which was not read from a file (python -, python -c, a notebook)" in told
    (tmp_path / "j.db").unlink()
    stays = text.replace("os._exit(9)", "pass")
    assert run("-c", stays, "submit", "thread", cwd=tmp_path) == "typed"
    done = subprocess.run(
        [sys.executable, "-", "submit", "process"], input=stays, cwd=tmp_path, capture_output=True, text=True,
        timeout=600, check=False, env={"JOURNAL": str(tmp_path / "k.db"), "STAY": "1"},
    )  # fmt: skip
    assert "cannot be found by a worker process" in done.stderr


MOVING = """
import os, sys, anyio
EARLY
sys.path.insert(0, "lib")
GO
LATE

def where(task):
    return os.getcwd()

async def main():
    tasks = [Task("own", run=where, engine="process"), Task("far", run=far.go, engine="process")]
    async with Runtime() as runtime:
        outcome = await (await runtime.submit(Workstream("w", tasks=tasks))).wait()
        print({name: task.last_error or task.result for name, task in outcome.tasks.items()})

if __name__ == "__main__":
    anyio.run(main)
"""
GO = {
    "here, of where it began": ("import far; os.chdir('data')", "open('config').close()"),
    "of where it is": ("os.chdir('data'); import far", "open('here').close()"),
    "it is the module that moves": ("import far", "os.chdir('data')"),
}


@pytest.mark.parametrize(
    ("begun", "go"),
    [
        *(("by its name", go) for go in GO), *(("imported late", go) for go in GO),
        ("by its path", "here, of where it began"), ("as a module", "it is the module that moves"),
    ],
)  # fmt: skip
def test_a_program_that_changes_its_folder_while_it_is_loaded_has_its_functions_in_worker_processes(
    tmp_path: Path, begun: str, go: str
) -> None:
    """A worker process begins where the program is by now: a relative path led to another folder there, or to none."""
    for folder in ("lib", "data"):
        (tmp_path / folder).mkdir()
    (tmp_path / "data" / "here").touch()
    (tmp_path / "config").touch()
    moves, far = GO[go]
    imports = "from callboard import Runtime, Task, Workstream"
    early, late = ("", imports) if begun == "imported late" else (imports, "")
    program, there = tmp_path / "moving.py", str(tmp_path / "data")
    program.write_text(MOVING.replace("EARLY", early).replace("LATE", late).replace("GO", moves))
    place = tmp_path if go == "of where it is" else tmp_path / "lib"
    (place / "far.py").write_text(f"import os\n{far}\ndef go(task):\n    return os.getcwd()\n")
    words = {"by its path": [str(program)], "as a module": ["-m", "moving"]}.get(begun, ["./moving.py"])
    assert run(*words, cwd=tmp_path) == str({"own": there, "far": there})


def test_conditions_checks_and_hooks_wait_for_their_program_too(tmp_path: Path) -> None:
    mine, other = write(tmp_path, "invoices"), write(tmp_path, "reminders")
    run(mine, "parts", cwd=tmp_path)
    told = run(other, cwd=tmp_path, STAY="1", PATIENCE="3")
    assert "waits:" in told
    assert not (tmp_path / "noted").exists()
    run(mine, cwd=tmp_path, check=True)
    assert set((tmp_path / "noted").read_text().split()) == {"invoices"}
    assert len((tmp_path / "noted").read_text().split()) in {3, 4}  # leaving waits for no hook


def test_machines_wait_for_their_program_too(tmp_path: Path) -> None:
    mine, other = write(tmp_path, "invoices"), write(tmp_path, "reminders")
    run(mine, "machine", cwd=tmp_path)
    before = (tmp_path / "noted").read_text() if (tmp_path / "noted").exists() else ""
    assert run(other, "fire", cwd=tmp_path) == "MachineNotFound"
    assert "reminders" not in before
    assert not (tmp_path / "noted").exists() or "reminders" not in (tmp_path / "noted").read_text()
    assert run(mine, "fire", cwd=tmp_path) == "pressed Facts(n=2)"


def test_the_command_line_names_the_program_to_start(tmp_path: Path) -> None:
    mine = write(tmp_path, "crates")
    run(mine, "submit", "thread", cwd=tmp_path)
    resume = "from callboard.runtime.cli import main; main()"
    told = run("-c", resume, "resume", "--journal", "j.db", cwd=tmp_path, PYTHONPATH=str(tmp_path))
    assert f"'__main__:work' is in the main module of another program, {mine}" in told


# -- what older versions kept ------------------------------------------------------------------------------------------


def work() -> str:
    return "here"


pytest_anyio = pytest.mark.anyio


@pytest_anyio
async def test_what_an_older_version_kept_of_a_program_waits_until_one_says_that_it_is_its_own(tmp_path: Path) -> None:
    def older(bodies: Bodies) -> None:
        bodies._registered["__main__:work"] = work
        bodies._names[id(work)] = "__main__:work"

    clock = VirtualClock()
    async with Runtime(tmp_path / "j.db", clock=clock) as runtime:
        older(runtime._services.bodies)
        await runtime.submit(Workstream("w", tasks=[Task("t", run=work, wait="1h")]), id="j")
    clock.advance(3600)
    async with Runtime(tmp_path / "j.db", clock=clock) as runtime:
        job = await runtime.job("j")
        with anyio.fail_after(300):
            await until(lambda: not job.task("t").record.routable)
            reason = job.task("t").record.reason or ""
            assert '@runtime.task(aliases=["__main__:work"])' in reason
            runtime.task(work, name="anything", aliases=["__main__:work"])
            assert (await job.wait()).results == {"t": "here"}


@pytest_anyio
async def test_what_was_submitted_under_an_id_is_known_again_by_other_names(tmp_path: Path) -> None:
    def said(run: object) -> Workstream:
        return Workstream("w", folder=str(tmp_path), tasks=[Task("t", run=run, wait="1h")], checks=[Check(run=run)])

    (tmp_path / "beside_this.py").write_text("def work(): ...")
    async with Runtime(tmp_path / "j.db") as runtime:
        runtime.task(work, name="first")
        await runtime.submit(said("first"), id="j")
        await runtime.submit(said("beside_this:work"), id="k")
    async with Runtime(tmp_path / "j.db") as runtime:
        runtime.task(work, name="second", aliases=["first"])
        for run in ("second", work, "first", f"{__name__}:work"):
            assert (await runtime.submit(said(run), id="j")).id == "j"
        for other in (said(charge), said("beside_this:work")):
            with pytest.raises(JobExists):
                await runtime.submit(other, id="j")
        runtime.task(find(located("beside_this:work", str(tmp_path))), name="third")
        assert (await runtime.submit(said("third"), id="k")).id == "k"


# -- stable names ------------------------------------------------------------------------------------------------------


def charge() -> str:
    return "charged"


def judge(task: object = None) -> bool:
    return True


@pytest_anyio
@pytest.mark.parametrize("engine", ["thread", "process"])
async def test_a_stable_name_is_found_wherever_its_function_is_now(tmp_path: Path, engine: str) -> None:
    clock = VirtualClock()
    said = Workstream(
        "w", checks=[Check(run="billing.judge")],
        tasks=[
            Task("a", run="billing.charge", engine=engine, wait="1h", condition=Condition(run="billing.judge")),
            Task("b", run="shop.old:charge", engine=engine, wait="1h"), Task("c", run=charge, wait="1h"),
        ],
    )  # fmt: skip
    async with Runtime(tmp_path / "j.db", clock=clock) as runtime:
        runtime.task(name="billing.charge", aliases=["charge", "shop.old:charge"])(charge)
        runtime.task(judge, name="billing.judge")
        job = await runtime.submit(said, id="j")
        spec = runtime.journal.reader.spec(job.record.stream) or b""
        assert spec.count(b'"run":"billing.charge"') == 2
        assert b'"run":"shop.old:charge"' in spec

    def moved() -> str:
        return "moved"

    clock.advance(3600)
    found = moved if engine == "thread" else charge
    async with Runtime(tmp_path / "j.db", clock=clock) as runtime:
        runtime.task(found, name="payments.charge", aliases=["billing.charge", "shop.old:charge"])
        runtime.task(judge, name="billing.judge")
        with anyio.fail_after(300):
            outcome = await (await runtime.job("j")).wait()
    assert set(outcome.results.values()) == {found()}
    assert outcome.state == "completed"


@pytest_anyio
async def test_a_name_that_nobody_registered_is_waited_for_and_told(tmp_path: Path) -> None:
    clock = VirtualClock()
    async with Runtime(tmp_path / "j.db", clock=clock) as runtime:
        runtime.task(charge, name="billing.charge")
        await runtime.submit(Workstream("w", tasks=[Task("t", run=charge, wait="1h")]), id="j")
        with pytest.raises(SpecificationError, match=r"no function is registered as 'billing.refund'"):
            await runtime.submit(Workstream("w", tasks=[Task("t", run="billing.refund")]))
    resume = "from callboard.runtime.cli import main; main()"
    told = run("-c", resume, "resume", "--journal", "j.db", cwd=tmp_path)
    assert "no function is registered as 'billing.charge'; register it, @runtime.task(name='billing.charge')" in told
    clock.advance(3600)
    async with Runtime(tmp_path / "j.db", clock=clock) as runtime:
        task = (await runtime.job("j")).task("t")
        await until(lambda: not task.record.routable)
        assert "no function is registered as 'billing.charge'" in (task.record.reason or "")


def test_two_functions_are_never_one_name() -> None:
    bodies = Bodies()
    bodies.register(charge, "billing.charge", ["billing.pay"])
    assert bodies.register(charge, "billing.charge") is charge
    for name, aliases in (
        ("billing.charge", []), ("billing.pay", []), ("other", ["billing.charge"]), ("other", [f"{__name__}:charge"]),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="another function is"):
            bodies.register(work, name, aliases)
    for wrong in ("", " a", "a:b", "a#1", "a\n"):
        with pytest.raises(ValueError, match="cannot be a body's name"):
            bodies.register(work, wrong)
    with pytest.raises(ValueError, match="cannot be a name that a function had"):
        bodies.register(work, "w", [""])
    with pytest.raises(TypeError, match="aliases is a list"):
        bodies.register(work, "w", "old")
    with pytest.raises(BodyNotFound):
        bodies.resolve("w")
