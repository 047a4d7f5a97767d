"""Hostile specification files, machine files and logs: each gives one clear error soon, with little memory, and
never a traceback or a hang.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.reliability.hostile.budget import LONG, tries

from callboard.actors.spec.validate import SpecificationError
from callboard.machines.audit.audit import audit_lines
from callboard.runtime.specfiles.machine_file import load_machine
from callboard.runtime.specfiles.workstream_file import load

pytestmark = pytest.mark.laboratory
SOURCE = Path(__file__).parents[3] / "src"
EXAMPLES = Path(__file__).parents[3] / "examples"
FOLDERS: list[Path] = []


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> None:
    FOLDERS[:] = [tmp_path_factory.mktemp("files")]


# -- fuzzing -----------------------------------------------------------------------------------------------------------

NASTY_TEXT = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "", " ", "../x", "/etc/passwd", "CON", "nul.txt", "a" * 300, "\u202etxt.exe", "\x1b[2J", "\x00", "\ud800",
            "-rf", "--help", "a:b", "x\ny", "\ufeff", "é", "e\u0301", "${X}", "$(id)", "1e999", "-0", "72h", "9" * 400,
            "os:system",
        ]
    ),
)  # fmt: skip
NASTY = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), NASTY_TEXT,
        st.sampled_from([2**63, -(2**63) - 1, 10**400, 1e308, -1, 0, 5e-324]),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NASTY_TEXT, inner, max_size=3),
    max_leaves=6,
)  # fmt: skip

VALID: list[dict[str, Any]] = [
    {
        "name": "release", "max_parallel": 2, "deadline": "2h", "tools": {"cc": {"max_concurrent": 2}},
        "defaults": {"timeout": 60, "retry": {"max_attempts": 3, "base_delay": "1s"}}, "env": {"A": "1"},
        "workers": [{"name": "w", "engine": "command", "capacity": 2, "capabilities": ["x"]}],
        "tasks": [
            {"name": "build", "command": ["make"], "checks": [{"file": "out"}], "tool": "cc", "priority": 3},
            {"name": "test", "command": "make test", "shell": True, "depends_on": ["build"], "timeout": "5m"},
            {"name": "ship", "run": "json:dumps", "after": ["test"], "hold": {"people": 2, "expires": "72h"},
             "args": {"a": [1, {"b": 2}]}, "on_failed": [{"command": ["true"]}]},
        ],
    },
    {
        "name": "review", "initial": "held", "facts": {"needed": 2, "patience": "72h"},
        "states": {"held": {"bounded_by": "people"}, "done": {"terminal": True}, "late": {"terminal": True}},
        "transitions": [
            {"source": "held", "event": "approve", "target": "done"},
            {"source": ["held"], "event": "expire", "target": "late", "severity": "warning"},
        ],
        "timed": [{"state": "held", "event": "expire", "after": "patience"}],
    },
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A valid file with a few places made nasty: replaced, renamed, doubled or left out."""
    value = json.loads(json.dumps(draw(st.sampled_from(VALID))))
    for _ in range(draw(st.integers(1, 4))):
        path = draw(st.sampled_from(places(value)))
        if not path:
            continue
        around = value
        for step in path[:-1]:
            around = around[step]
        match draw(st.sampled_from(["replace", "rename", "remove", "double"])):
            case "replace":
                around[path[-1]] = draw(NASTY)
            case "rename" if isinstance(around, dict):
                around[draw(NASTY_TEXT)] = around.pop(path[-1])
            case "double" if isinstance(around, list):
                around.append(around[path[-1]])
            case _:
                del around[path[-1]]
    return value


def written(value: Any, ending: str) -> bytes:
    """The value as a file of that format would have it, so far as it can."""
    if ending == ".yaml":
        import yaml

        try:
            return yaml.safe_dump(value, allow_unicode=True).encode("utf-8", "surrogatepass")
        except yaml.YAMLError:
            pass
    if ending == ".toml":
        return toml(value).encode("utf-8", "surrogatepass")
    return json.dumps(value).encode()


def toml(value: Any) -> str:
    """The value's keys, each with an inline value."""
    if not isinstance(value, dict):
        return f"x = {inline(value)}"
    return "\n".join(f"{json.dumps(str(key))} = {inline(one)}" for key, one in value.items())


def inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))} = {inline(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(inline, value)) + "]"
    return "nan" if value is None else json.dumps(value)


def is_refused_plainly(content: bytes, ending: str) -> None:
    """Both kinds of files can be read, or are refused with findings that can be shown."""
    path = FOLDERS[0] / f"file{ending}"
    path.write_bytes(content)
    problems: list[int] = []
    for reader in (load, load_machine):
        try:
            reader(path)
        except SpecificationError as error:
            text = str(error)
            problems.append(len(text))
    assert all(0 < size < 200_000 for size in problems)


@given(mutated(), st.sampled_from([".json", ".toml", ".yaml"]))
@tries(60)
def test_a_valid_file_with_nasty_places_is_read_or_refused_with_findings(value: Any, ending: str) -> None:
    is_refused_plainly(written(value, ending), ending)


@given(st.sampled_from(VALID), st.sampled_from([".json", ".toml", ".yaml"]), st.data())
@tries(60)
def test_a_file_with_damaged_bytes_is_read_or_refused_with_findings(
    value: Any, ending: str, data: st.DataObject
) -> None:
    content = bytearray(written(value, ending))
    for _ in range(data.draw(st.integers(1, 5))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(
            st.binary(max_size=4)
            | st.sampled_from([b"\xef\xbb\xbf", b"&a", b"*a", b"<<:", b"!!python/name:os", b"[", b"{", b'"', b"'''"])
        )
    is_refused_plainly(bytes(content), ending)


@given(
    st.lists(st.one_of(st.binary(max_size=60), NASTY.map(lambda value: json.dumps(value).encode())), max_size=6),
    st.data(),
)
@tries(80)
def test_any_bytes_can_be_audited(noise: list[bytes], data: st.DataObject) -> None:
    good = json.dumps(
        {"seq": 1, "timestamp": "2026-01-01T00:00:00.000Z", "event_type": "task_state_transition", "severity": "info",
         "entity_id": "j@1/t", "entity_seq": 1, "from_state": None, "to_state": "pending", "trigger": "create"}
    )  # fmt: skip
    event = json.loads(good)
    event[data.draw(st.sampled_from([*event, "more"]))] = json.loads(json.dumps(data.draw(NASTY)))
    lines = [json.dumps(event).encode(), *noise, good.encode()]
    for finding in audit_lines(io.BytesIO(b"\n".join(data.draw(st.permutations(lines))))):
        assert finding.text


# -- size --------------------------------------------------------------------------------------------------------------

MEMORY = 1 << 30
"""Bytes of address space that reading any file may take, the interpreter's own included."""
SECONDS = 60
"""Of processor time, on the slowest machine."""
N = 20_000_000 if LONG else 200_000
"""Bytes of the large ones."""


def deep(left: str, right: str = "") -> Callable[[], bytes]:
    return (left * 100_000 + "1" + right * 100_000).encode


def many(begin: str, one: str, end: str = "") -> Callable[[], bytes]:
    return (begin + one * ((N - len(begin) - len(end)) // len(one)) + end).encode


def numbered(line: str) -> Callable[[], bytes]:
    return lambda: "".join(line.format(number, number + 1) for number in range(N // (len(line) + 12))).encode()


HUGE: dict[str, Callable[[], bytes]] = {
    "deep-lists.json": deep("[", "]"),
    "deep-tables.json": deep('{"a":', "}"),
    "deep-lists.toml": deep("x=[", "]"),
    "deep-tables.toml": deep("x={x=", "}"),
    "deep-key.toml": deep("a."),
    "deep-quoted-key.toml": deep('"a".'),
    "deep-header.toml": deep("[a."),
    "deep-lists.yaml": deep("[", "]"),
    "deep-tables.yaml": deep("{a: ", "}"),
    "bomb.yaml": (
        "a: &a [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join(['*' + chr(97 + n)] * 9)}]\n" for n in range(20))
    ).encode,
    "merges.yaml": (
        "m0: &m0 {k: 1}\n" + "".join(f"m{n}: &m{n} {{<<: [*m{n - 1}, *m{n - 1}], k{n}: 1}}\n" for n in range(1, 5_000))
    ).encode,
    "cycle.yaml": lambda: b"a: &a [*a]",
    "numbers.json": many('{"tasks":[0', ",0", "]}"),
    "lists.json": many('{"tasks":[[]', ",[]", "]}"),
    "numbers.toml": many("tasks=[0", ",0", "]"),
    "tables.toml": many("", "[[tasks]]\n"),
    "items.yaml": many("tasks:\n", "- {}\n"),
    "doubled.json": many('{"a":1', ',"a":1', "}"),
    "doubled.yaml": many("", "a: 1\n"),
    "keys.toml": numbered("k{}=1\n"),
    "keys.json": lambda: json.dumps(dict.fromkeys(map(str, range(N // 12)))).encode(),
    "anchors.yaml": numbered("a{0}: &a{0} x\n"),
    "chain.toml": numbered('[[tasks]]\nname="t{}"\ncommand=["true"]\ndepends_on=["t{}"]\n'),
    "unknown.toml": numbered('[[tasks]]\nname="t{}"\ncommand=["true"]\ndepends_on=["x{}"]\n'),
    "digits.toml": many("x=", "1"),
    "digits.json": many('{"x":', "1", "}"),
    "digits.yaml": many("x: ", "1"),
    "sixties.yaml": many("x: 1", ":59"),
    "text.json": many('{"name":"', "x", '"}'),
    "quotes.toml": many('x = """', '\\"'),
    "too-large.json": lambda: b'{"a":"' + b"x" * 100_000_000 + b'"}',
    "utf-16.toml": lambda: 'name = "x"'.encode("utf-16"),
    "marks.json": lambda: b"\xef\xbb\xbf" * 3 + b"{}",
}
CHILD = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
from callboard.actors.spec.validate import SpecificationError
from callboard.runtime.specfiles.workstream_file import load
for name in sys.argv[1:]:
    try:
        load(name)
    except SpecificationError as error:
        print(name, error.findings[0].message[:80], len(str(error)) < 100_000)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does")
def test_huge_files_are_refused_in_bounded_time_and_memory(tmp_path: Path) -> None:
    for name, make in HUGE.items():
        (tmp_path / name).write_bytes(make())
    text = CHILD.format(memory=MEMORY, seconds=SECONDS * (20 if LONG else 1))
    ended = subprocess.run(
        [sys.executable, "-c", text, *HUGE], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, (ended.stdout, ended.stderr)
    told = {line.split()[0]: line for line in ended.stdout.splitlines()}
    assert set(told) == set(HUGE), set(HUGE) - set(told)
    assert all(line.endswith("True") for line in told.values())


AUDIT = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
sys.argv = ["callboard", "audit", sys.argv[1]]
from callboard.runtime.cli import main
main()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited as Linux does")
@pytest.mark.parametrize("what", ["endless", "long", "deep"])
def test_a_log_whose_lines_are_endless_is_refused(tmp_path: Path, what: str) -> None:
    file = tmp_path / "log.jsonl"
    if what == "endless":
        file = Path("/dev/zero")
    elif what == "long":
        with file.open("wb") as log:
            log.write(b'{"seq":1,"metadata":"')
            log.truncate(100_000_000)
    else:
        file.write_bytes((b'{"seq":1,"metadata":{"a":' + b"[" * 100_000 + b"\n") * 3)
    ended = subprocess.run(
        [sys.executable, "-c", AUDIT, str(file)], env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "Traceback" not in ended.stderr
    if what == "deep":
        assert (ended.returncode, ended.stdout.count("damaged")) == (1, 3), (ended.stdout, ended.stderr)
    else:
        assert ended.returncode == 2, (ended.stdout, ended.stderr)
        assert ended.stderr == f"callboard: {file} is no log: its line 1 has more than 33,554,432 bytes.\n"
