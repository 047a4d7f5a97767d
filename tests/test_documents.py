"""The documents are true: their code runs, their commands exist, their tables match the code, their links work.

Fences that are run, each in a copy of the checkout:
- `python`: as a program, which must end with 0; `python ray`: with a Ray cluster.
- `console`: each line after `$ ` in one shell, in which every command must end with 0. What is shown must come out so;
  numbers and ids may differ, lines that begin with a time are not compared, and `...` leaves some out.
- `toml`, `yaml`: as a specification file.
- `ini` (a unit of systemd), `dockerfile`: what they start is a command with options that there are.
- `python theirs` is not run: a program of another library, beside ours.
- `toml machine`: as a file of a machine, with the functions of the page's own example; it is driven to its end, too.

Two kinds are looked at elsewhere: `terminal` is a session at two terminals (tests/runtime/cli/test_sessions.py), and of
`sh` only that its commands exist. `sql` is for people to adapt.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from tests.forks import Forks

import callboard
from callboard import load
from callboard.actors.spec import model as spec
from callboard.runtime.documents import settings as specwords
from callboard.runtime.specfiles import workstream_file as specfile

pytestmark = pytest.mark.programs
ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(page.stem for page in (ROOT / "docs").glob("*.md"))
DOCUMENTS = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "tests/reliability/README.md",
    *(f"docs/{page}.md" for page in PAGES),
]
README = (ROOT / "README.md").read_text(encoding="utf-8")


class Block(NamedTuple):
    """A fenced block: where it begins, its info string, its text."""

    place: str
    info: str
    text: str


def blocks(document: str, text: str) -> list[Block]:
    fence = re.compile(r"^```([^\n`]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return [
        Block(f"{document}:{text.count(chr(10), 0, found.start()) + 1}", found[1].strip(), found[2])
        for found in fence.finditer(text)
    ]


BLOCKS = [block for name in DOCUMENTS for block in blocks(name, (ROOT / name).read_text(encoding="utf-8"))]


def of(info: str) -> list[object]:
    return [pytest.param(block, id=block.place) for block in BLOCKS if block.info == info]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with a copy of the examples, into which they write their files."""
    ignored = shutil.ignore_patterns("__pycache__", "dist", "build", "pipeline-data", "*.db*")
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=ignored)
    return tmp_path


def environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}  # of this run of pytest
    return kept | {"PATH": path, "PYTHONWARNINGS": "error", "COLUMNS": "200"}


def run(command: list[str], checkout: Path) -> str:
    done = subprocess.run(
        command, cwd=checkout, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    with Forks(tmp_path_factory.mktemp("forks"), **environment()) as forks:
        yield forks


@pytest.mark.parametrize("block", of("python"))
def test_python_runs(block: Block, checkout: Path, forks: Forks) -> None:
    program = checkout / "program.py"
    program.write_text(block.text, encoding="utf-8")
    done = forks.run(program, cwd=checkout)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.cluster
@pytest.mark.parametrize("block", of("python ray"))
def test_python_runs_with_a_cluster(
    block: Block, checkout: Path, ray_here: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", ray_here.address)
    program = checkout / "program.py"
    program.write_text(block.text, encoding="utf-8")
    run([sys.executable, str(program)], checkout)


@pytest.mark.parametrize("block", of("python pytest"))
def test_a_suite_passes(block: Block, checkout: Path) -> None:
    (checkout / "test_shown.py").write_text(block.text, encoding="utf-8")
    found = [] if entry_points(group="pytest11", name="callboard") else ["-p", "callboard.runtime.testing.plugin"]
    assert " passed" in run([sys.executable, "-m", "pytest", "-q", *found, "test_shown.py"], checkout)


UNTIL_IT_RUNS = "& until callboard status 2>/dev/null | grep -q running; do sleep 0.1; done;"
"""Wait, where people would sleep: a machine may be slow."""


@pytest.mark.parametrize("block", of("console"))
def test_a_session_goes_as_shown(block: Block, checkout: Path) -> None:
    lines = block.text.splitlines()
    commands = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    assert commands, "a console block shows commands after `$ `"
    commands = [re.sub(r"& sleep [\d.]+;", UNTIL_IT_RUNS, command) for command in commands]
    if any(UNTIL_IT_RUNS in command for command in commands):  # to look at it takes seconds on a busy machine
        release = checkout / "examples" / "release.toml"
        release.write_text(release.read_text(encoding="utf-8").replace('"2.5"', '"8"'), encoding="utf-8")
    came = {masked(line) for line in run(["bash", "-ec", "\n".join(commands)], checkout).splitlines()}
    timed = re.compile(r"\d\d:\d\d:\d\d ")
    shown = [line for line in lines if not line.startswith("$ ") and line != "..." and not timed.match(line)]
    assert [line for line in shown if masked(line) not in came] == [], came


def masked(line: str) -> str:
    """A line without the parts that differ between runs: ids, numbers, and the widths that follow from them."""
    return re.sub(r"\s+", " ", re.sub(r"\d+(\.\d+)?", "N", re.sub(r"\b[0-9A-Z]{26}\b", "ID", line))).strip()


@pytest.mark.parametrize("block", [*of("toml"), *of("yaml")])
def test_a_specification_is_accepted(block: Block, tmp_path: Path) -> None:
    path = tmp_path / f"shown.{block.info}"
    path.write_text(block.text, encoding="utf-8")
    assert load(path).workstream.tasks


@pytest.mark.parametrize("block", of("toml machine"))
def test_a_machine_of_a_file_is_that_of_the_program_before_it(block: Block, checkout: Path) -> None:
    (program,) = [one.text for one in BLOCKS if one.place.startswith("docs/machines.md") and "REVIEW = " in one.text]
    told = program.partition("\n\nasync def main")[0]
    (checkout / "reviews.py").write_text(told, encoding="utf-8")
    (checkout / "review.toml").write_text(block.text, encoding="utf-8")
    (checkout / "drive.py").write_text(DRIVE, encoding="utf-8")
    warned = "callboard: machine_state_transition: page-2 held -> old: its patience was over"  # on standard error
    assert run([sys.executable, "drive.py"], checkout).splitlines() == ["out 3", warned, "old its patience was over"]
    drawn = run(["callboard", "diagram", "review.toml"], checkout)
    assert "held --> old: expire" in drawn


DRIVE = """
import anyio
import reviews
from callboard import Fire, Runtime, VirtualClock, load_machine
from callboard.errors import InvalidTransitionError

review = load_machine("review.toml")
assert review.machine.transitions == reviews.REVIEW.transitions
assert review.machine.timed == reviews.REVIEW.timed


async def main():
    clock = VirtualClock()
    async with Runtime("machines.db", clock=clock) as runtime:
        page = runtime.spawn(review.with_facts(needed=3), name="page-1")
        other = runtime.spawn(review.with_facts(patience="1h"), name="page-2")
        for one in (page, other):
            await one.ask(Fire("submit"))
        for _ in range(3):
            await page.ask(Fire("approve"))
        print(page.state, page.facts.approvals, flush=True)
        seen = runtime.events(entity="page-2", to_state="old")
        clock.advance(3600)
        print((await anext(seen)).to_state, other.record.reason)


anyio.run(main)
"""


@pytest.mark.parametrize("block", [*of("ini"), *of("dockerfile")])
def test_what_others_are_told_to_start_can_be_started(block: Block) -> None:
    (line,) = re.findall(r"^(?:ExecStart=\S*/|CMD )(.*callboard.*)$", block.text, re.MULTILINE)
    _, command, *arguments = json.loads(line) if line.startswith("[") else line.split()
    shown = run(["callboard", command, "--help"], ROOT)
    options = {argument for argument in arguments if argument.startswith("--")}
    assert options <= set(re.findall(r"--[\w-]+", shown))
    assert set(re.findall(r"CALLBOARD_\w+", block.text)) <= set(re.findall(r"CALLBOARD_\w+", shown))


def test_every_fence_is_of_a_kind_that_is_looked_at() -> None:
    known = {
        "python",
        "python pytest",
        "python ray",
        "python theirs",
        "console",
        "console main",
        "console tests",
        "toml",
        "toml machine",
        "yaml",
        "mermaid",
        "ini",
        "dockerfile",
        "sh",
        "sql",
        "terminal",
    }
    assert {block.info for block in BLOCKS} <= known | {""}
    assert {block.place.split(":")[0] for block in BLOCKS if not block.info} == {"ARCHITECTURE.md"}  # a picture


# -- the first screen --------------------------------------------------------------------------------------------------


def test_the_first_screen_has_twelve_lines_of_python_and_two_commands() -> None:
    first, main, tests = blocks("README.md", README)[:3]
    assert (first.info, main.info, tests.info) == ("python", "console main", "console tests")
    assert len([line for line in first.text.splitlines() if line.strip()]) <= 12
    assert main.text.count("\n") == tests.text.count("\n") == 1
    assert main.text.endswith(".venv/bin/callboard run examples/release.toml\n")
    assert tests.text.endswith(".venv/bin/pytest -n auto\n")
    assert README.index(tests.text) < README.index("\n## ")


# -- tables ------------------------------------------------------------------------------------------------------------

SECTIONS = {
    "Workstream": spec.Workstream, "Task": spec.Task, "Retry": spec.Retry, "Defaults": spec.Defaults, "Tool": spec.Tool,
    "Breaker": spec.Breaker, "Check": spec.Check, "Condition": spec.Condition, "Hook": spec.Hook, "Alert": spec.Alert,
    "Worker": spec.Worker, "Approval": spec.Approval, "Clause": spec.Clause,
}  # fmt: skip


def keys(section: str) -> dict[str, str]:
    """The keys in a section of the specification's page, with their defaults."""
    page = (ROOT / "docs" / "specification.md").read_text(encoding="utf-8")
    text = page.split(f"\n## {section}\n")[1].split("\n## ")[0].split("| key |")[1].split("\n\n")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", text, re.MULTILINE))


@pytest.mark.parametrize("section", SECTIONS)
def test_the_specification_page_tells_of_every_key_with_its_default(section: str) -> None:
    told = keys(section)
    fields = msgspec.structs.fields(SECTIONS[section])
    assert set(told) == {field.name for field in fields}
    for field in fields:
        if field.required:
            assert told[field.name].startswith("required")
        elif isinstance(field.default, int | float):  # also of bool
            assert told[field.name].startswith(f"`{str(field.default).lower()}`"), field.name


def sections_of(kind: type[msgspec.Struct]) -> set[type[msgspec.Struct]]:
    """A Struct, and all those that its fields hold, or theirs."""
    found: set[type[msgspec.Struct]] = set()
    left: list[Any] = [msgspec.inspect.type_info(kind)]
    while left:
        one = left.pop()
        left += [getattr(one, name) for name in ("item_type", "value_type") if hasattr(one, name)]
        left += getattr(one, "types", ())
        if isinstance(one, msgspec.inspect.StructType) and one.cls not in found:
            found.add(one.cls)
            left += [field.type for field in one.fields]
    return found


def test_the_specification_page_tells_of_every_section() -> None:
    theirs = {
        specwords.TaskLifecycle, specwords.ToolProfile, specwords.CircuitSettings, specwords.CheckpointSettings,
        specwords.Dag,
    }  # fmt: skip
    assert sections_of(specfile._Layout) - theirs - {specfile._Layout} | {spec.Workstream} == set(SECTIONS.values())
    page = (ROOT / "docs" / "specification.md").read_text(encoding="utf-8")
    table = page.split("| section of a file |")[1].split("\n\n")[0]
    own = {field.name for field in msgspec.structs.fields(spec.Workstream)}
    more = {field.name for field in msgspec.structs.fields(specfile._Layout)}
    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == more - own


@pytest.mark.parametrize(
    ("section", "kinds"),
    [
        ("task_lifecycle", [specwords.TaskLifecycle, specwords.CircuitSettings, specwords.CheckpointSettings]),
        ("tool_profiles", [specwords.ToolProfile]),
    ],
)
def test_the_page_of_the_documents_shows_every_key_of_theirs(section: str, kinds: list[type[msgspec.Struct]]) -> None:
    (block,) = [one.text for one in BLOCKS if one.place.startswith("docs/documents.md") and section in one.text]
    shown = set(re.findall(r"^ *(\w+)(?: =|:)", block, re.MULTILINE))
    assert {field.name for kind in kinds for field in msgspec.structs.fields(kind)} <= shown


def test_the_page_of_workers_tells_of_every_setting_of_health_checks_with_its_default() -> None:
    page = (ROOT / "docs" / "workers.md").read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", page.split("| setting of `HealthChecks` |")[1], re.MULTILINE))
    fields = {field.name: field.default for field in msgspec.structs.fields(spec.HealthChecks)}
    restarts = fields["restarts"]
    spans = {name: f"`{default:g} s`" for name, default in fields.items() if isinstance(default, float)}
    counts = {"misses": f"`{fields['misses']}`", "restarts": f"{restarts.intensity} in {restarts.period:g} s"}
    assert told == {**spans, **counts}


def test_the_command_line_is_what_the_readme_says() -> None:
    told = set(re.findall(r"^\| `callboard (\w+)", README, re.MULTILINE))
    shown = run(["callboard", "--help"], ROOT)
    commands = set(re.findall(r"^  (\w+)  +\w", shown.partition("Commands:")[2], re.MULTILINE))
    assert told == commands
    named = {found for block in BLOCKS for found in re.findall(r"^callboard (\w+)", block.text, re.MULTILINE)}
    assert named <= commands
    codes = re.findall(r"^\| (\d+) \| ", README, re.MULTILINE)
    assert codes == re.findall(
        r"(\d+) (?:completed|failed|bad|an error|not in effect|cancelled|the reader)", " ".join(shown.split())
    )


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_lead_somewhere(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    links = re.findall(r"\]\((?!https?:)([^)#]*)(#[^)]*)?\)", text)
    headings = {
        re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.*)", text, re.MULTILINE)
    }
    for path, anchor in links:
        assert ((ROOT / name).parent / path).exists(), path
        assert path or anchor[1:] in headings, anchor


def test_files_that_the_tour_names_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:machines|actors|runtime|tests)/[\w./]+)`", text):
        assert (ROOT / path).exists(), path
    for names, path in re.findall(r"((?:`\w+`(?:, | and )?)+) in `(\w+/[\w/]+\.py)`", text):
        code = (ROOT / path).read_text(encoding="utf-8")
        assert all(re.search(rf"\b{name}\b", code) for name in re.findall(r"\w+", names) if name != "and"), names


def test_files_that_docstrings_and_comments_name_are_there() -> None:
    files = [path for layer in ("actors", "machines", "runtime") for path in (ROOT / layer).rglob("*.py")]
    there = {path.name for path in (*files, *(ROOT / "tests").rglob("*.py"))}
    named = {(path, name) for path in files for name in re.findall(r"`[\w/]*?(\w+\.py)`", path.read_text("utf-8"))}
    assert len(named) > 100
    assert [f"{path}: {name}" for path, name in sorted(named) if name not in there] == []


EVENT = r'(?:notice\(\s*"|notice, "|Notice\(\s*event="|ActorTrouble\("|_broken\(")([a-z_]+)"'


def test_every_notice_that_is_told_is_described() -> None:
    page = (ROOT / "docs" / "observation.md").read_text(encoding="utf-8")
    table = page.partition("## Notices")[2].partition("\n## ")[0]
    files = [path for folder in ("actors", "runtime") for path in (ROOT / folder).rglob("*.py")]
    told = {event for path in files for event in re.findall(EVENT, path.read_text(encoding="utf-8"))}
    assert len(told) > 40
    assert sorted(event for event in told if f"`{event}`" not in table) == []


GUARANTEES = (ROOT / "docs/guarantees.md").read_text(encoding="utf-8")
PROMISES = re.findall(r"^\|.*\| `(tests/[^`]+)` \|$", GUARANTEES, re.MULTILINE)


@pytest.mark.parametrize("test", sorted(set(PROMISES)))
def test_every_promise_is_held_by_a_test_that_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert re.search(rf"^(async )?def {name}\(", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)


def test_no_promise_is_without_its_test() -> None:
    promises = GUARANTEES.partition("## Limits")[0].count("\n| ") - 2 * GUARANTEES.count("| promised | held by |")
    assert promises == len(PROMISES) > 30


def test_the_changelog_tells_of_the_present_version() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.*)"', pyproject, re.MULTILINE)
    assert version is not None
    assert f"## [{version[1]}]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_documents_name_public_names_only() -> None:
    for block in BLOCKS:
        if block.info == "python":
            for names in re.findall(r"^from callboard import (.*)$", block.text, re.MULTILINE):
                assert set(names.split(", ")) <= set(callboard.__all__), block.place
