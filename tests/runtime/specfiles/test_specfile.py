"""Specification files in three formats: one schema, every mistake with its line, and limits for hostile files."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from callboard.actors.spec.model import Approval, Check, Clause, Hook, Retry, Task, Tool, Worker, Workstream
from callboard.actors.spec.validate import Finding, SpecificationError
from callboard.actors.times import moment
from callboard.runtime.functions.registry import Bodies
from callboard.runtime.specfiles import lines as speclines
from callboard.runtime.specfiles import workstream_file as specfile
from callboard.runtime.specfiles import yaml_text as specyaml

TOML = """\
# a comment, with = and [brackets]
name = "release"
deadline = "2h"
cwd = "sub"
max_parallel = 4

[tools.gcc]
retry = { max_attempts = 3, base_delay = 0.5, wait = { strategy = "wait_fixed", wait = 3 } }

[[tasks]]
name = "build"
command = ["make", "-j4"]
tool = "gcc"
env = { TEXT = '''
two lines''' }

[[tasks]]
name = "test"
run = "suite:run"
depends_on = [
    "build",
]
args = { n = 1, nested = { a = [1, 2.5, true] } }

  [[tasks.checks]]
  file = "out.txt"

  [[tasks.on_failed]]
  command = "echo $X"
  shell = true

[[workers]]
name = "w1"
engine = "command"
capacity = 2
"""

YAML = """\
name: release
deadline: 2h
cwd: sub
max_parallel: 4
tools:
  gcc:
    retry: &again {max_attempts: 3, base_delay: 0.5, wait: {strategy: wait_fixed, wait: 3}}
tasks:
  - name: build
    command: [make, -j4]
    tool: gcc
    env:
      TEXT: |-
        two lines
  - name: test
    run: suite:run
    depends_on:
      - build
    args: {n: 1, nested: {a: [1, 2.5, true]}}
    checks: [file: out.txt]
    on_failed:
      - {command: echo $X, shell: true}
workers:
  - {name: w1, engine: command, capacity: 2}
"""

JSON = """\
{"name": "release", "deadline": "2h", "cwd": "sub", "max_parallel": 4,
 "tools": {"gcc": {"retry": {"max_attempts": 3, "base_delay": 0.5, "wait": {"strategy": "wait_fixed", "wait": 3}}}},
 "tasks": [
   {"name": "build", "command": ["make", "-j4"], "tool": "gcc", "env": {"TEXT": "two lines"}},
   {"name": "test", "run": "suite:run", "depends_on": ["build"], "args": {"n": 1, "nested": {"a": [1, 2.5, true]}},
    "checks": [{"file": "out.txt"}], "on_failed": [{"command": "echo $X", "shell": true}]}
 ],
 "workers": [{"name": "w1", "engine": "command", "capacity": 2}]}
"""


def write(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def told(folder: Path, name: str, content: str | bytes) -> dict[str, tuple[int | None, str]]:
    with pytest.raises(SpecificationError) as caught:
        specfile.load(write(folder, name, content))
    return {one.where: (one.line, f"{one.message} ({one.suggestion})") for one in caught.value.findings}


@pytest.mark.parametrize(("name", "content"), [("a.toml", TOML), ("a.yaml", YAML), ("a.yml", YAML), ("a.JSON", JSON)])
def test_one_schema_in_three_formats(tmp_path: Path, name: str, content: str) -> None:
    wanted = Workstream(
        "release",
        deadline="2h",
        cwd=str(tmp_path / "sub"),
        folder=str(tmp_path),
        max_parallel=4,
        tools={"gcc": Tool(retry=Retry(max_attempts=3, base_delay=0.5, wait={"strategy": "wait_fixed", "wait": 3}))},
        tasks=[
            Task("build", command=["make", "-j4"], tool="gcc", env={"TEXT": "two lines"}),
            Task(
                "test",
                run="suite:run",
                depends_on=["build"],
                args={"n": 1, "nested": {"a": [1, 2.5, True]}},
                checks=[Check(file="out.txt")],
                on_failed=[Hook(command="echo $X", shell=True)],
            ),
        ],
    )
    loaded = specfile.load(write(tmp_path, name, content))
    assert loaded.workstream == wanted
    assert loaded.workers == [Worker("w1", engine="command", capacity=2)]


def test_folders_start_at_the_file_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "w.toml", 'tasks = [{name="a", command=["x"], cwd="deep"}, {name="b", command=["x"], cwd="/tmp"}]')
    monkeypatch.chdir(tmp_path)
    stream = specfile.load("w.toml").workstream
    assert stream.name == "w"  # a file without a name is named as the file
    assert (stream.cwd, stream.folder) == (str(tmp_path), str(tmp_path))
    assert [task.cwd for task in stream.tasks] == [str(tmp_path / "deep"), "/tmp"]
    assert specfile.load("w.toml").workers is None


BAD_TOML = """\
nmae = "x"
deadline = "tomorrow"

[[tasks]]
name = "a"
comand = ["x"]

[[tasks]]
name = "a"
command = "two words"
depends_on = [
  "a",
  # a comment
  "bb",
]
retry = { max_attempts = 3,  jitter = "much" }

[tasks.condition]
command = ["x"]
timeout = 0

[[tasks.checks]]
file = "x"
imports = "y"
when = 1979-05-27 07:32:00

[[workers]]
name = "w"
engine = "lop"
"""
BAD_YAML = """\
nmae: x
deadline: tomorrow

tasks:
  - name: a
    comand: [x]

  -
    name: a
    command: two words
    depends_on:
      - a

      - bb
    retry: {max_attempts: 3,
      jitter: much}
    condition:
      command: [x]
      timeout: 0
    checks:
      - file: x
        imports: y
        when: 1
workers:
  - name: w

    engine: lop
"""
BAD_JSON = """\
{
  "nmae": "x", "deadline":
    "tomorrow",
  "tasks": [
    {"name": "a",
     "comand": ["x"]},
    {"name": "a",
     "command": "two words",
     "depends_on": [
       "a",
       "bb"],
     "retry": {"max_attempts": 3,
       "jitter": "much"},
     "condition": {"command": ["x"],
       "timeout": 0},
     "checks": [ {"file": "x",
       "imports": "y", "when": 1}]}
  ],
  "workers": [{"name": "w",

    "engine": "lop"}]
}
"""


@pytest.mark.parametrize(
    ("name", "content", "lines"),
    [
        ("a.toml", BAD_TOML, [1, 2, 4, 6, 9, 10, 12, 14, 16, 20, 22, 25, 29]),
        ("a.yaml", BAD_YAML, [1, 2, 5, 6, 9, 10, 12, 14, 16, 19, 21, 23, 27]),
        ("a.json", BAD_JSON, [2, 2, 5, 6, 7, 8, 10, 11, 13, 15, 16, 17, 21]),
    ],
)
def test_every_mistake_with_its_line(tmp_path: Path, name: str, content: str, lines: list[int]) -> None:
    found = told(tmp_path, name, content)
    assert {place: line for place, (line, _) in found.items()} == dict(
        zip(
            [
                "nmae",
                "deadline",
                "tasks[0]",
                "tasks[0].comand",
                "tasks[1].name",
                "tasks[1].command",
                "tasks[1].depends_on[0]",
                "tasks[1].depends_on[1]",
                "tasks[1].retry.jitter",
                "tasks[1].condition.timeout",
                "tasks[1].checks[0]",
                "tasks[1].checks[0].when",
                "workers[0].engine",
            ],
            lines,
            strict=True,
        )
    )
    assert "did you mean 'name'?" in found["nmae"][1]
    assert "did you mean 'command'?" in found["tasks[0].comand"][1]
    assert "did you mean 'loop'?" in found["workers[0].engine"][1]
    assert [line for line, _ in found.values()] == sorted(lines)


@pytest.mark.parametrize(
    ("name", "content", "line"),
    [
        ("a.toml", "name = 'x'\n# no more", None),
        ("a.toml", "# nothing", None),
        ("a.toml", "\ntasks = []", 2),
        ("a.yaml", "# nothing\n", None),
        ("a.yaml", "name: x\ntasks: []\n", 2),
        ("a.json", "{}", None),
        ("a.json", "null", None),
        ("a.json", '{\n"tasks": []}', 2),
    ],
)
def test_a_file_without_tasks_is_a_finding_in_every_format(
    tmp_path: Path, name: str, content: str, line: int | None
) -> None:
    assert told(tmp_path, name, content) == {"tasks": (line, "there are no tasks (`callboard init` writes an example)")}


FUNCTIONS = {
    "a.toml": """
nmae = "x"
[[tasks]]
name = "a"
run = "their_steps:wrong"
[[tasks]]
name = "b"
run = "their_steps:right"
engine = "thread"
[[tasks.on_failed]]
run = "not_there:hook"
""",
    "a.yaml": """
nmae: x
tasks:
- name: a
  run: their_steps:wrong
- name: b
  run: their_steps:right
  engine: thread
  on_failed:
  - run: not_there:hook
""",
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_missing_functions_are_told_with_the_rest_and_have_their_lines(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    monkeypatch.delitem(sys.modules, "their_steps", raising=False)
    (tmp_path / "their_steps.py").write_text("async def right(): pass\n")
    with pytest.raises(SpecificationError) as refused:
        specfile.load(write(tmp_path, name, FUNCTIONS[name]), functions=Bodies().callable_body)
    assert [(finding.where, finding.line) for finding in refused.value.findings] == [
        ("nmae", 2),
        ("tasks[0].run", 5),
        ("tasks[1].engine", 9 if name == "a.toml" else 8),
        ("tasks[1].on_failed[0].run", 11 if name == "a.toml" else 10),
    ]


def test_a_number_that_is_none_is_told_plainly(tmp_path: Path) -> None:
    text = "[[tasks]]\nname = 'a'\ncommand = ['x']\ntimeout = nan\nretry = {base_delay = inf}\n"
    found = told(tmp_path, "a.toml", text)
    assert found["tasks[0].timeout"] == (4, "nan is not a finite number (None)")
    assert found["tasks[0].retry.base_delay"] == (5, "inf is not a finite number (None)")


def test_however_long_a_name_what_is_told_is_short(tmp_path: Path) -> None:
    long = "x" * 500_000
    task = {"name": long, "run": f"{long}:{long}", "depends_on": [long, f"{long}y"], "tool": long, "timeout": long}
    spec = {
        "name": long, "tasks": [task, task], "tools": {long: {}}, "env": {f"{long}=": "1"}, long: 1,
        "cwd": "\0" * 100_000, "checks": [{"imports": long + "-"}, {"command": long}],
    }  # fmt: skip
    with pytest.raises(SpecificationError) as refused:
        specfile.load(write(tmp_path, "a.json", json.dumps(spec)), functions=Bodies().callable_body)
    assert len(refused.value.findings) > 12
    assert max(len(str(finding)) for finding in refused.value.findings) < 1000
    many = SpecificationError([Finding("x", "is wrong")] * 1000)
    assert str(many).startswith("1000 things are wrong")
    assert str(many).endswith("… and 900 more")


def test_a_cycle_is_printed_at_its_first_task(tmp_path: Path) -> None:
    text = """
[[tasks]]
name = "a"
command = ["x"]
after = ["b"]
[[tasks]]
name = "b"
command = ["x"]
depends_on = ["a"]
"""
    (place, (line, message)), *more = told(tmp_path, "a.toml", text).items()
    assert (place, line, more) == ("tasks[0]", 2, [])
    assert "a -> b -> a" in message


@pytest.mark.parametrize(
    ("name", "content", "line", "words"),
    [
        ("a.txt", "x", None, "has a name that ends in .txt, and the ending decides the format: it must be one of"),
        ("a", "x", None, "has a name without an ending"),
        ("a.toml", b"\xff\xfe", 1, "no UTF-8"),
        ("a.toml", b"name = 'x'\n\x00", 2, "NUL"),
        ("a.toml", "a = 1\na = 2", 2, "no TOML: Cannot overwrite"),
        ("a.toml", "a = ", 1, "end of document"),
        ("a.toml", "a = " + "[" * 100_000, None, "nested too deep"),
        ("a.json", " ", None, "is empty (`callboard init` writes an example)"),
        ("a.json", "{", 1, "no JSON: Expecting"),
        ("a.toml", "\n\n", None, "is empty"),
        ("a.json", "{\n1}", 2, "no JSON"),
        ("a.json", '{"a": NaN}', None, "NaN is no number"),
        ("a.json", "[" * 100_000, None, "nested too deep"),
        ("a.json", '{"a": ' + "9" * 5000 + "}", None, "no JSON"),
        ("a.json", "[]", None, "no table"),
        ("a.yaml", "", None, "is empty"),
        ("a.yaml", "- a", None, "no table"),
        ("a.yaml", "a: [\n", 2, "no YAML"),
        ("a.yaml", "a: b\n  c: d\n", 2, "no YAML"),
        ("a.yaml", "a: \t\n\tb: c", 2, "no YAML"),
        ("a.yaml", "a: !mine [x]", 1, "tag !mine"),
        ("a.yaml", "a: 1\n---\nb: 2", 2, "second document"),
        ("a.yaml", "a: !!python/object/apply:os.system [true]", 1, "no YAML"),
        ("a.yaml", "a: !!python/name:os.system x", 1, "no YAML"),
        ("a.yaml", "a: !!int x", 1, "cannot be read"),
        ("a.yaml", "a: !!int \u0663", 1, "is no int"),
        ("a.yaml", "a: !!float '\u0663.5'", 1, "is no float"),
        ("a.yaml", "a: !!int ''", 1, "is no int"),
        ("a.yaml", "a: !!bool maybe", 1, "is no bool"),
        ("a.yaml", "a: !!timestamp soon", 1, "is no timestamp"),
        ("a.yaml", "a: *x", 1, "no anchor"),
        ("a.yaml", "a: &x [*x]", 1, "inside of its own anchor"),
        ("a.yaml", "? [a]\n: b", 1, "a key must be one word"),
        ("a.yaml", "<<: 5", 1, "<< takes a mapping"),
        ("a.yaml", "a: " + "[" * 500, 1, "nested"),
        ("a.yaml", "a: " + "[" * 100_000, 1, ""),
        ("a.yaml", "\x07", None, "no YAML"),
    ],
)
def test_files_that_are_none(tmp_path: Path, name: str, content: str | bytes, line: int | None, words: str) -> None:
    ((place, (at, message)),) = told(tmp_path, name, content).items()
    assert (place, at) == ("", line)
    assert words in message
    assert "\n" not in message


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(specfile, "LARGEST", 100)
    for path, words in [
        (tmp_path / "no.toml", "does not exist"),
        (tmp_path, "is a folder; name a file, whose name ends in one of .toml, .yaml, .yml, .json"),
        (Path("/dev/null"), "is not a regular file"),
        (write(tmp_path, "large.toml", "#" * 101), "has 101 bytes"),
        ("a\0b.toml", "does not exist|cannot be read"),
        ("x" * 5000, "cannot be read"),
    ]:
        with pytest.raises(SpecificationError, match=words):
            specfile.load(path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission(tmp_path: Path) -> None:
    path = write(tmp_path, "a.toml", "")
    path.chmod(0)
    with pytest.raises(SpecificationError, match="Permission denied"):
        specfile.load(path)


def test_doubled_keys(tmp_path: Path) -> None:
    text = '{"name": "x",\n "tasks": [{"name": "a", "command": ["x"],\n  "name": "b"}],\n "name": "y"}'
    assert {place: line for place, (line, _) in told(tmp_path, "a.json", text).items()} == {
        "tasks[0].name": 3,
        "name": 4,
    }
    text = "name: x\ntasks:\n - name: a\n   command: [x]\n   name: b\nname: y\n"
    assert {place: line for place, (line, _) in told(tmp_path, "a.yaml", text).items()} == {
        "tasks[0].name": 5,
        "name": 6,
    }


def test_yaml_s_own_ideas_of_types_are_told(tmp_path: Path) -> None:
    text = """\
name: no
tasks:
  - name: 007
    command: [echo, 2026-01-01, 1.5, ~, on]
    optional: "yes"
    timeout: 10 s
  - name: 1.2e+3
    command:
"""
    found = told(tmp_path, "a.yaml", text)
    assert {place: line for place, (line, _) in found.items()} == {
        "name": 1,
        "tasks[0].name": 3,
        "tasks[0].command[1]": 4,
        "tasks[0].command[2]": 4,
        "tasks[0].command[3]": 4,
        "tasks[0].command[4]": 4,
        "tasks[0].optional": 5,
        "tasks[0].timeout": 6,
        "tasks[1].name": 7,
        "tasks[1]": 7,
    }
    assert "write it in quotes" in found["name"][1]
    assert "without quotes" in found["tasks[0].optional"][1]


def test_yaml_aliases_and_merges(tmp_path: Path) -> None:
    text = """\
name: x
common: &c {command: [x], retry: {max_attempts: 2}}
"""
    assert list(told(tmp_path, "a.yaml", text)) == ["tasks", "common"]
    text = """\
name: x
tasks:
  - &first {name: a, command: [x], priority: 3}
  - {<<: *first, name: b}
  - <<: [{command: [y], name: no}, *first]
    name: c
"""
    stream = specfile.load(write(tmp_path, "b.yaml", text)).workstream
    assert [(task.name, task.command, task.priority) for task in stream.tasks] == [
        ("a", ["x"], 3),
        ("b", ["x"], 3),
        ("c", ["y"], 3),
    ]


def test_a_small_yaml_file_cannot_mean_a_huge_one(tmp_path: Path) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 30)]
    before = time.process_time()
    ((_, (line, message)),) = told(tmp_path, "bomb.yaml", "\n".join(rows)).items()
    assert time.process_time() - before < 5
    assert line == 6
    assert "this file expands to more than" in message


def test_without_a_yaml_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    ((_, (_, message)),) = told(tmp_path, "a.yaml", "name: x").items()
    assert "pip install 'callboard[yaml]'" in message


def test_lines_are_found_in_every_shape_of_toml() -> None:
    text = '''\
a.b."c.d" = 1.5
"e" = """
x = [
"""
f = [[1,
  2], [3], 1979-05-27T07:32:00.5Z]
[g.h] # [no]
i = { j = 1, k = ["]", '[', """
"""], l = 2 }
[[m]]
[[m]]
n.o = 1
[[m.p]]
q = true
[[m.p]]
[m.r]
s = -1.5e3
'''
    assert speclines.toml_lines(text) == {
        ("a",): 1, ("a", "b"): 1, ("a", "b", "c.d"): 1, ("e",): 2,
        ("f",): 5, ("f", 0): 5, ("f", 0, 0): 5, ("f", 0, 1): 6, ("f", 1): 6, ("f", 1, 0): 6, ("f", 2): 6,
        ("g", "h"): 7, ("g", "h", "i"): 8, ("g", "h", "i", "j"): 8, ("g", "h", "i", "k"): 8,
        ("g", "h", "i", "k", 0): 8, ("g", "h", "i", "k", 1): 8, ("g", "h", "i", "k", 2): 8, ("g", "h", "i", "l"): 9,
        ("m",): 10, ("m", 0): 10, ("m", 1): 11, ("m", 1, "n"): 12, ("m", 1, "n", "o"): 12,
        ("m", 1, "p"): 13, ("m", 1, "p", 0): 13, ("m", 1, "p", 0, "q"): 14, ("m", 1, "p", 1): 15,
        ("m", 1, "r"): 16, ("m", 1, "r", "s"): 17,
    }  # fmt: skip


def test_lines_are_found_in_every_shape_of_json() -> None:
    text = '{"": [\n1, {"a": "b,[",\n"c": {}}, [], [[2]]\n],\n"\\u0041": null}'
    lines, doubled = speclines.json_lines(text)
    assert not doubled
    assert lines == {
        ("",): 1, ("", 0): 2, ("", 1): 2, ("", 1, "a"): 2, ("", 1, "c"): 3, ("", 2): 3, ("", 3): 3,
        ("", 3, 0): 3, ("", 3, 0, 0): 3, ("A",): 5,
    }  # fmt: skip


@pytest.mark.parametrize("suffix", ["toml", "yaml", "json"])
def test_thousands_of_tasks_load_in_reasonable_time(tmp_path: Path, suffix: str) -> None:
    row: dict[str, Any] = {
        "toml": "[[tasks]]\nname = 't{}'\ncommand = ['echo', 'x']\n",
        "yaml": "  - name: t{}\n    command: [echo, x]\n",
        "json": '{{"name": "t{}", "command": ["echo", "x"]}}',
    }
    around = {"toml": ("", "", ""), "yaml": ("tasks:\n", "", ""), "json": ('{"tasks": [', ",\n", "]}")}
    head, between, tail = around[suffix]
    content = head + between.join(row[suffix].format(n) for n in range(3_000)) + tail
    before = time.process_time()
    assert len(specfile.load(write(tmp_path, f"a.{suffix}", content)).workstream.tasks) == 3_000
    assert time.process_time() - before < 5  # 0.1 to 0.3 s


def test_yaml_lines_of_values() -> None:
    data, lines, findings = specyaml.load("a:\n  - b: 1\n    c:\n      - x\n  - {d: 2}\n")
    assert data == {"a": [{"b": 1, "c": ["x"]}, {"d": 2}]}
    assert not findings
    assert lines == {
        ("a",): 1, ("a", 0): 2, ("a", 0, "b"): 2, ("a", 0, "c"): 3, ("a", 0, "c", 0): 4, ("a", 1): 5, ("a", 1, "d"): 5,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        ("toml", 'wait = 2030-01-31T09:00:00+01:00\n[[tasks]]\nname = "a"\ncommand = ["true"]\nwait = {}\n{}'),
        ("yaml", 'wait: 2030-01-31T09:00:00+01:00\ntasks:\n- {{name: a, command: ["true"], wait: {}, {}}}'),
        (
            "json",
            '{{"wait": "2030-01-31T09:00+01:00", "tasks": [{{"name": "a", "command": ["true"], {1}, "wait": "{0}"}}]}}',
        ),
    ],
)
def test_approvals_and_waits_are_the_same_in_every_format(tmp_path: Path, ending: str, text: str) -> None:
    hold = {
        "toml": 'hold = { people = 2, clauses = [{ person = "ana" }] }',
        "yaml": "hold: {people: 2, clauses: [{person: ana}]}",
        "json": '"hold": {"people": 2, "clauses": [{"person": "ana"}]}',
    }[ending]
    path = tmp_path / f"w.{ending}"
    path.write_text(text.format("2030-01-31T08:00:00Z", hold), encoding="utf-8")
    workstream = specfile.load(path).workstream
    at = moment(workstream.wait or 0, 0.0)
    assert at == moment(workstream.tasks[0].wait or 0, 0.0) == 1_896_076_800.0
    assert workstream.tasks[0].hold == Approval(people=2, clauses=[Clause(person="ana")])
    path.write_text(text.format("2030-01-31T08:00:00", hold), encoding="utf-8")
    with pytest.raises(SpecificationError, match="says no zone"):
        specfile.load(path)
