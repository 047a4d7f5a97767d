"""Modules beside specifications: each folder has its own, also if another folder has one of the same name."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from importlib.machinery import FileFinder, SourceFileLoader
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from callboard import Fire, Hook, Runtime, Task, Workstream, load
from callboard.errors import GuardRejected
from callboard.runtime.functions import folder_modules as beside
from callboard.runtime.functions.import_paths import BodyNotFound, find, located, on_another_machine, path_of, source_of
from callboard.runtime.functions.registry import Bodies, placed
from callboard.runtime.specfiles.machine_file import load_machine

pytestmark = pytest.mark.anyio
SIDES = ("left", "right")
STEPS = """
import dataclasses
import msgspec
import helpers
from parts import named
from parts.deep import inner

@dataclasses.dataclass
class Box:
    content: "str"

class Facts(msgspec.Struct):
    side: str = "SIDE"

def go():
    import helpers as again
    import parts.deep
    assert again is helpers and parts.deep.inner is inner
    return [Box("SIDE").content, Facts().side, helpers.SIDE, named(), inner.SIDE]

async def a_go():
    return go()

def fits(task):
    with open(f"{task.args['notes']}", "a") as notes:
        notes.write(f"{task.args['kind']} SIDE\\n")
    return True
"""


@pytest.fixture
def folders(tmp_path: Path) -> dict[str, Path]:
    """Two folders with modules of the same names."""
    made: dict[str, Path] = {}
    for side in SIDES:
        made[side] = folder = tmp_path / f"{side}_side"
        (folder / "parts" / "deep").mkdir(parents=True)
        (folder / "steps.py").write_text(
            STEPS.replace("SIDE", side)
            .replace(f"helpers.{side}", "helpers.SIDE")
            .replace(f"inner.{side}", "inner.SIDE")
        )
        (folder / "helpers.py").write_text(f"SIDE = {side!r}\n")
        (folder / "parts" / "__init__.py").write_text("from .named import named\n")
        (folder / "parts" / "named.py").write_text("import helpers\ndef named():\n    return helpers.SIDE\n")
        (folder / "parts" / "deep" / "__init__.py").write_text("from . import inner\n")
        (folder / "parts" / "deep" / "inner.py").write_text("from parts.named import named\nSIDE = named()\n")
    return made


@pytest.mark.parametrize("task", ['run = "steps:go"', 'run = "steps:a_go"', 'run = "steps:go"\nengine = "process"'])
async def test_each_specification_runs_the_modules_of_its_own_folder(
    folders: dict[str, Path], tmp_path: Path, task: str
) -> None:
    got: dict[str, Any] = {}
    paths = list(sys.path)
    with anyio.fail_after(300):
        async with Runtime(tmp_path / "j.db") as runtime:
            for side, folder in folders.items():
                (folder / "spec.toml").write_text(f'[[tasks]]\nname = "a"\n{task}\n')
                job = await runtime.submit(load(folder / "spec.toml").workstream)
                got[side] = (await job.wait()).results["a"]
    assert got == {side: [side] * 5 for side in SIDES}
    assert sys.path == paths
    assert not {"steps", "helpers", "parts"} & sys.modules.keys()


async def test_conditions_checks_and_hooks_are_of_their_folder_too(folders: dict[str, Path], tmp_path: Path) -> None:
    with anyio.fail_after(300):
        async with Runtime(tmp_path / "j.db") as runtime:
            for side, folder in folders.items():
                (folder / "spec.toml").write_text(
                    '[[tasks]]\nname = "a"\nrun = "steps:go"\ncondition = { run = "steps:fits" }\n'
                    f'args = {{ kind = "asked", notes = "{tmp_path / side}" }}\nchecks = [{{ run = "steps:fits" }}]\n'
                )
                job = await runtime.submit(load(folder / "spec.toml").workstream)
                assert (await job.wait()).state == "completed"
    for side in SIDES:
        assert (tmp_path / side).read_text() == f"asked {side}\n" * 2


RESTART = """
import os, sys, anyio
from callboard import Runtime, load

async def main():
    async with Runtime("j.db") as runtime:
        if sys.argv[1:]:
            for folder in sys.argv[1:]:
                await runtime.submit(load(folder + "/spec.toml").workstream, id=os.path.basename(folder))
            os._exit(9)
        for job in list(runtime.recovered):
            print(job.id, (await job.wait()).results)

anyio.run(main)
"""


@pytest.mark.parametrize("engine", ["", 'engine = "process"\n'])
def test_a_restart_finds_each_in_its_folder(folders: dict[str, Path], tmp_path: Path, engine: str) -> None:
    for folder in folders.values():
        (folder / "spec.toml").write_text(f'[[tasks]]\nname = "a"\nrun = "steps:go"\nwait = "1s"\n{engine}')
    (tmp_path / "program.py").write_text(RESTART)
    words = [sys.executable, "program.py"]
    subprocess.run([*words, *(str(folder) for folder in folders.values())], cwd=tmp_path, check=False)
    done = subprocess.run(words, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=600)
    assert sorted(done.stdout.splitlines()) == [f"{side}_side {{'a': {[side] * 5}}}" for side in SIDES]


def test_the_command_line_goes_on_with_each_in_its_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    for side, folder in folders.items():
        (folder / "spec.toml").write_text('[[tasks]]\nname = "a"\nrun = "noting:go"\nwait = "1s"\n')
        (folder / "noting.py").write_text(f"def go():\n    open('noted', 'a').write('{side} ')\n")
    (tmp_path / "program.py").write_text(RESTART)
    words = [sys.executable, "program.py", *(str(folder) for folder in folders.values())]
    subprocess.run(words, cwd=tmp_path, check=False)
    resume = [sys.executable, "-c", "from callboard.runtime.cli import main; main()", "resume", "--journal", "j.db"]
    subprocess.run(resume, cwd=tmp_path, check=True, capture_output=True, timeout=600)
    assert sorted((tmp_path / "noted").read_text().split()) == list(SIDES)


async def test_a_folder_that_is_gone_is_not_looked_for_elsewhere(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = folders.values()
    spec = Workstream("w", folder=str(left), tasks=[Task("a", run="steps:go", wait="1h")])
    with anyio.fail_after(300):
        async with Runtime(tmp_path / "j.db") as runtime:
            await runtime.submit(spec, id="j")
    left.rename(tmp_path / "moved")
    for name in [name for name in sys.modules if name.startswith(beside.__name__ + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.syspath_prepend(str(right))
    with pytest.raises(BodyNotFound, match=r"there is no module 'steps' in .*left_side any more"):
        Bodies().resolve(f"steps@{left}:go")
    left.symlink_to(tmp_path / "moved")
    assert Bodies().resolve(f"steps@{left}:go")()[0] == "left"


async def test_bodies_submit_children_and_ask_teams_of_their_own_folder(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    for side, folder in folders.items():
        (folder / "family.py").write_text(
            "from callboard import Approval, Clause, Task, Workstream\n"
            "import steps\n"
            "async def parent(task):\n"
            "    said = Workstream('c', tasks=[Task('a', run='steps:go'), Task('b', run=steps.go)])\n"
            "    child = await task.submit(said, name='child')\n"
            "    results = (await child.wait()).results\n"
            "    await task.approval('ok', Approval(clauses=[Clause(team='crew', members='family:crew')]))\n"
            "    return results\n"
            f"def crew(team):\n    return ['{side}']\n"
        )
        (folder / "spec.toml").write_text('[[tasks]]\nname = "p"\nrun = "family:parent"\n')
    async with Runtime(tmp_path / "j.db") as runtime:
        for side, folder in folders.items():
            with anyio.fail_after(300):
                job = await runtime.submit(load(folder / "spec.toml").workstream)
                while not (pending := runtime.approvals()):
                    assert not job.ended, await job.wait()
                    await anyio.sleep(0.01)
                assert [one.teams for one in pending] == [["crew"]]
                await job.task("p").approve(by=side, approval="ok")
                assert (await job.wait()).results["p"] == {"a": [side] * 5, "b": [side] * 5}


MACHINE = """
name = "door"
initial = "open"
[facts]
by = ""
[states]
open = { bounded_by = "somebody" }
shut = { terminal = true }
[[transitions]]
source = "open"
event = "by_now"
target = "open"
[[transitions]]
source = "open"
event = "shut"
target = "shut"
guard = "rules:may"
"""


async def test_machine_files_have_the_guards_of_their_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    for side, folder in folders.items():
        (folder / "door.toml").write_text(MACHINE)
        (folder / "rules.py").write_text(f"def may(facts, fire):\n    return facts.by == {side!r}\n")
    for start in range(2):
        async with Runtime(tmp_path / "j.db") as runtime:
            with anyio.fail_after(300):
                for side, folder in folders.items():
                    if start == 0:
                        runtime.spawn(load_machine(folder / "door.toml"), name=side)
                    else:
                        with pytest.raises(GuardRejected):
                            await runtime.machine(side).ask(Fire("shut"))
                        await runtime.machine(side).ask(Fire("by_now", facts={"by": side}))
                        await runtime.machine(side).ask(Fire("shut"))


LIFECYCLE = """
from callboard import Lifecycle, Machine, Phase, State, Transition
STATES = [
    State("SIDE_open", Phase.PENDING, bounded_by="it"), State("in_work", Phase.RUNNING, bounded_by="it"),
    State("merged", Phase.COMPLETED, terminal=True), State("dropped", Phase.FAILED, terminal=True),
]
ROWS = [
    Transition("SIDE_open", "take", "in_work"), Transition("in_work", "merge", "merged"),
    Transition("in_work", "drop", "dropped"),
]
SHORT = Lifecycle("short", "task", Machine("short", "SIDE_open", STATES, ROWS), {})
"""


async def test_lifecycles_are_of_their_folder(folders: dict[str, Path], tmp_path: Path) -> None:
    for side, folder in folders.items():
        (folder / "own.py").write_text(LIFECYCLE.replace("SIDE", side))
        (folder / "spec.toml").write_text(
            'lifecycle = "own:SHORT"\n[[tasks]]\nname = "a"\ncommand = ["true"]\nwait = "1h"\n'
        )
    for start in range(2):
        async with Runtime(tmp_path / "j.db") as runtime:
            for side, folder in folders.items():
                if start == 0:
                    await runtime.submit(load(folder / "spec.toml").workstream, id=side)
                record = (await runtime.job(side)).task("a").record
                assert record.published is not None
                assert record.published.state == f"{side}_open"


def test_what_python_finds_under_that_name_itself_is_that_module(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = folders.values()
    monkeypatch.syspath_prepend(str(left))
    names = ("steps", "helpers", "parts", "parts.named", "parts.deep", "parts.deep.inner")
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)
        del sys.modules[name]
    path = located("steps:go", str(left))
    assert path == f"steps@{left}:go"
    go = find(path)
    steps = sys.modules["steps"]
    assert go is steps.go
    assert path_of(steps.go) == "steps:go"
    other = find(located("steps:go", str(right)))
    assert other is not go
    assert [one()[0] for one in (go, other)] == list(SIDES)  # type: ignore[operator]
    assert path_of(other) == f"steps@{right}:go"  # type: ignore[arg-type]
    assert sys.modules["helpers"].SIDE == "left"
    link = left.parent / "link"
    link.symlink_to(left)
    assert find(f"steps@{link}:go") is go


def test_a_folder_without_init_gives_way_to_a_module_of_that_name(tmp_path: Path) -> None:
    (tmp_path / "msgspec").mkdir()
    (tmp_path / "plain_data").mkdir()
    (tmp_path / "plain_data" / "inner.py").write_text("def go():\n    return 1\n")
    (tmp_path / "sys.py").write_text("def go():\n    return 1\n")
    assert located("msgspec:to_builtins", str(tmp_path)) == "msgspec:to_builtins"
    assert located("sys:exit", str(tmp_path)) == "sys:exit"
    assert find(located("plain_data.inner:go", str(tmp_path)))() == 1  # type: ignore[operator]


def test_what_is_not_there_is_told(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import not_there_at_all\n")
    (tmp_path / "raises.py").write_text("raise SystemExit('no')\n")
    for path, text in {
        "broken:x": "module 'broken' imports 'not_there_at_all', which cannot be found",
        "raises:x": "module 'raises' cannot be imported: SystemExit: no",
    }.items():
        with pytest.raises(BodyNotFound, match=text):
            find(located(path, str(tmp_path)))
    (tmp_path / "few.py").write_text("def one(): ...\n")
    with pytest.raises(BodyNotFound, match=r"'few:on': there is no 'on' in module 'few'; did you mean 'one'\?"):
        find(located("few:on", str(tmp_path)))


def test_other_processes_find_what_is_pickled(folders: dict[str, Path]) -> None:
    box = find(located("steps:Box", str(folders["right"])))("x")  # type: ignore[operator]
    code = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read()).content)"
    done = subprocess.run([sys.executable, "-c", code], input=pickle.dumps(box), capture_output=True, check=True)
    assert done.stdout.split() == [b"x"]


def test_import_hooks_of_other_libraries_change_nothing(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as beartype's, for all files: it compiles the modules, and their imports search their folder first."""
    compiled: list[str] = []

    class Compiles(SourceFileLoader):
        def get_code(self, fullname: str) -> Any:
            compiled.append(beside.plain(fullname))
            return super().get_code(fullname)

    monkeypatch.setattr(sys, "path_hooks", [FileFinder.path_hook((Compiles, [".py"])), *sys.path_hooks])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    for side, folder in folders.items():
        assert beside.module_in(str(folder), "steps").go() == [side] * 5
    assert sorted({*compiled}) == ["helpers", "parts", "parts.deep", "parts.deep.inner", "parts.named", "steps"]
    assert inspect.getsource(beside.module_in(str(folder), "helpers")) == "SIDE = 'right'\n"


def test_errors_of_such_a_module_are_named_as_people_know_them(tmp_path: Path) -> None:
    from callboard.runtime.engines.failures import type_name

    (tmp_path / "faults.py").write_text("class Fault(Exception): ...\n")
    assert type_name(find(located("faults:Fault", str(tmp_path)))()) == "faults.Fault"  # type: ignore[operator]


def test_what_older_versions_kept_beside_a_folder_is_found_there(folders: dict[str, Path]) -> None:
    left = str(folders["left"])
    old = Workstream(
        "w", folder=left, on_completed=[Hook(run="steps:fits")],
        tasks=[Task("a", run="steps:go"), Task("b", run="registered"), Task("c", run="__main__:work")],
    )  # fmt: skip
    now = placed(old)
    assert [task.run for task in now.tasks] == [f"steps@{left}:go", "registered", "__main__:work"]
    assert now.on_completed[0].run == f"steps@{left}:fits"
    assert placed(now) == now


async def test_the_same_specification_is_the_same_job_wherever_its_folder_lies(
    folders: dict[str, Path], tmp_path: Path
) -> None:
    async with Runtime(tmp_path / "j.db") as runtime:
        spec = Workstream("w", folder=str(folders["left"]), tasks=[Task("a", run="steps:go", wait="1h")])
        job = await runtime.submit(spec, id="j")
        assert (await runtime.submit(spec, id="j")).id == job.id


def test_on_another_machine_a_module_of_the_same_text_is_found_without_its_folder(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left, right = (f"steps@{folder}:go" for folder in folders.values())
    texts = {path: source_of(path) for path in (left, right)}
    for side, folder in folders.items():
        folder.rename(tmp_path / f"shipped_{side}")
    for name in [name for name in sys.modules if name.startswith(f"{beside.__name__}.")]:
        monkeypatch.delitem(sys.modules, name)
    assert on_another_machine(left, texts[left]) == left
    monkeypatch.syspath_prepend(str(tmp_path / "shipped_left"))
    assert on_another_machine(left, texts[left]) == "steps:go"
    assert on_another_machine(right, texts[right]) == right
    assert on_another_machine("shop:go", None) == "shop:go"


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_a_folder_is_spelled_in_a_name_and_read_again(folder: str) -> None:
    token = beside._token(folder)
    assert beside._folder(token) == folder
    assert f"x{token}".isidentifier()
