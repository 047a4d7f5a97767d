"""Specification files: a workstream and its workers from TOML, YAML or JSON, checked whole (DESIGN, end of section 9).

Rules:
- One schema for all formats, that of `actors/spec/model.py`: a file's keys are the fields of `Workstream`, besides
  `workers`, a list of `Worker`.
- All findings are reported at once, each with its line and, if there is one, a suggestion. No code of the file runs.
- Paths in a file are relative to the file's folder: commands run there unless `cwd` is set, a
  relative `cwd` starts there, and modules of functions ("module:function") are looked for there
  first.
- Three sections use the words of the documents that they come from (`runtime/documents/settings.py`):
  `task_lifecycle`, `tool_profiles` and `dag`. `dag` may be a file of its own.
- A file over 20 MB is refused unread; a file that is no text is refused with a plain message.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any, cast

import msgspec

from ...actors.spec.lifecycles import Lifecycles
from ...actors.spec.model import Worker, Workstream
from ...actors.spec.schema import MOST_FINDINGS, Finding, around, beside, read, short, where
from ...actors.spec.validate import SpecificationError, findings, worker_findings
from ..documents.settings import Dag, Sections, TranslatedSections
from ..extras import missing
from ..functions.import_paths import find, located
from ..functions.lifecycles import by_place, within
from . import lines as speclines
from . import yaml_text as specyaml

__all__ = ["RunFile", "load"]

LARGEST = 20_000_000
"""The largest file that is read, in bytes."""
MOST_VALUES = 1_000_000
"""The most values in a file: a hundred thousand tasks with ten values each."""
DEEPEST = 100
_MOST_STEPS = 1_000  # of a key in TOML, whose parser takes quadratic time
_DOTTED = re.compile(r"""(?:\.[ \t]*(?:"[^"\n]*"|'[^'\n]*'|[\w-]*)[ \t]*)+""")
_QUOTED = re.compile(r""""[^"\n]*"|'[^'\n]*'""")
_ENDINGS = ".toml, .yaml, .yml, .json"


Functions = Callable[[str], Callable[..., Any]]


class RunFile(msgspec.Struct, frozen=True):
    """The content of a specification file. `workers` is None if the file does not set them."""

    workstream: Workstream
    workers: list[Worker] | None
    path: Path


class _Layout(Sections, frozen=True, kw_only=True):
    """A file's top level."""

    workers: list[Worker] | None = None


def load(
    path: str | Path,
    *,
    functions: Functions | None = None,
    lifecycle: str | None = None,
    dag: str | Path | None = None,
) -> RunFile:
    """Read and check a specification file. Raises SpecificationError with all findings.

    The default of `name` is the file's name. functions: finds the function of an import path, and raises LookupError if
    there is none (which becomes a finding); without it, functions are looked up only when the workstream is
    submitted. lifecycle: overrides the file's own lifecycle. dag: a file with the dependencies, instead of the section
    `dag`.
    """
    path = Path(path)
    data, lines, found = read_table(path)
    if dag is not None:
        found += _with_dag(data, Path(dag))
    given = _with_times_as_text({"name": path.stem, **data})
    layout, mistyped = read(given, _Layout)
    workers = layout.workers
    found += mistyped
    if len(found) >= MOST_FINDINGS:
        raise SpecificationError(with_lines(found, lines), str(path))
    words = TranslatedSections(layout, given)
    workstream = words.workstream
    lies_in = path.absolute().parent  # once: a module that is imported may change the working folder
    folder = str(lies_in / (workstream.folder or ""))
    kinds = within(Lifecycles(resolve=None if functions is None else find), folder)
    if lifecycle is not None:
        wrong = _not_there(lifecycle, kinds)
        found += wrong
        workstream = msgspec.structs.replace(workstream, lifecycle=None if wrong else lifecycle)
    if isinstance(workstream.lifecycle, str) and not _not_there(workstream.lifecycle, kinds):
        kinds.default = workstream.lifecycle
    more = words.findings + words.renamed(findings(workstream, bodies=_looking_in(folder, functions), lifecycles=kinds))
    more += worker_findings(workers, lifecycles=kinds) if workers else []
    if not workstream.tasks:
        more.append(Finding("tasks", "there are no tasks", "`callboard init` writes an example"))
    found += beside(found, more)
    if found:
        raise SpecificationError(with_lines(found, lines), str(path))
    workers = None if workers is None else [by_place(worker, folder) for worker in workers]
    return RunFile(by_place(_placed(workstream, lies_in), folder), workers, path)


def _with_dag(data: dict[str, Any], path: Path) -> list[Finding]:
    """Put a DAG file into a file's table, as its section. Raises SpecificationError for an invalid DAG file."""
    table, lines, found = read_table(path)
    found += read(table, Dag)[1]
    if found:
        raise SpecificationError(with_lines(found, lines), str(path))
    if "dag" in data:
        return [Finding("dag", f"is given here and in {path}", "keep one of them")]
    data["dag"] = table
    return []


def _looking_in(folder: str, functions: Functions | None) -> Functions | None:
    """Return a finder that searches a folder first."""
    return None if functions is None else lambda name: functions(located(name, folder, program=False))


def _not_there(lifecycle: str, known: Lifecycles) -> list[Finding]:
    try:
        known.find(lifecycle)
    except (LookupError, ValueError) as error:
        return [Finding("--lifecycle", str(error.args[0]))]
    return []


def read_table(path: Path) -> tuple[dict[str, Any], Callable[[], speclines.Lines], list[Finding]]:
    """A file's table of settings, a function that finds its lines, and its findings so far.

    Raises SpecificationError for a file that cannot be read.
    """
    data, lines, found = _parse(path, _text(path))
    problem = unbearable(data)
    if not isinstance(data, dict | None):
        raise _refused(path, "holds no table of settings", None)
    if problem is not None:
        raise _refused(path, problem, None)
    del found[MOST_FINDINGS:]
    return cast("dict[str, Any]", data or {}), lines, found


def unbearable(data: object) -> str | None:
    """The reason why a file has too many values, or None: each value costs memory and time later."""
    level, values, depth = [data], 0, 0
    while level:
        values += len(level)
        if values > MOST_VALUES:
            return f"has more than {MOST_VALUES:,} values; split it into several files"
        if depth > DEEPEST:
            return f"is nested more than {DEEPEST} levels deep"
        depth += 1
        level = [inner for one in level for inner in _inside(one)]
    return None


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return cast("dict[str, object]", value).values()
    return cast("list[object]", value) if isinstance(value, list) else ()


def _with_times_as_text(data: dict[str, Any]) -> dict[str, Any]:
    """The data with each `wait` as text: without quotes, TOML and YAML parse a date."""

    def read_as_date(table: Any) -> bool:
        return isinstance(table, dict) and isinstance(cast("dict[str, Any]", table).get("wait"), date)

    if read_as_date(data):
        data["wait"] = data["wait"].isoformat()
    with suppress(msgspec.ValidationError):  # else the schema check reports it
        for task in msgspec.convert(data.get("tasks", []), list[Any]):
            if read_as_date(task):
                task["wait"] = task["wait"].isoformat()
    return data


def _placed(workstream: Workstream, folder: Path) -> Workstream:
    """The workstream with absolute folders, relative to the file's folder."""
    tasks = [
        task if task.cwd is None else msgspec.structs.replace(task, cwd=str(folder / task.cwd))
        for task in workstream.tasks
    ]
    return msgspec.structs.replace(
        workstream,
        tasks=tasks,
        cwd=str(folder / (workstream.cwd or "")),
        folder=str(folder / (workstream.folder or "")),
    )


def _text(path: Path) -> str:
    try:
        if not path.is_file():
            raise _refused(path, _why_no_file(path), None)
        size = path.stat().st_size
        if size > LARGEST:
            raise _refused(path, f"has {size:,} bytes, and {LARGEST:,} is the most", None)
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, SpecificationError):
            raise
        raise _refused(path, f"cannot be read: {getattr(error, 'strerror', None) or error}", None) from None
    if not content.strip():
        raise _refused(path, "is empty", None)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise _refused(path, f"is no UTF-8 text (byte {error.start})", line) from None
    if "\0" in text:
        raise _refused(path, "is no text: it holds NUL bytes", text.count("\n", 0, text.index("\0")) + 1)
    return text


def _why_no_file(path: Path) -> str:
    """Why there is no file that can be read, and what was expected."""
    if path.is_dir():
        return f"is a folder; name a file, whose name ends in one of {_ENDINGS}"
    return "is not a regular file" if path.exists() else "does not exist"


def _parse(path: Path, text: str) -> tuple[Any, Callable[[], speclines.Lines], list[Finding]]:
    """The file's data, a function that finds its lines, and its findings so far."""
    match path.suffix.lower():
        case ".toml":
            return _toml(path, text), lambda: speclines.toml_lines(text), []
        case ".json":
            return _json(path, text)
        case ".yaml" | ".yml":
            return _yaml(path, text)
        case suffix:
            ends = f"has a name that ends in {suffix}" if suffix else "has a name without an ending"
            raise _refused(path, f"{ends}, and the ending decides the format: it must be one of {_ENDINGS}", None)


def _toml(path: Path, text: str) -> Any:
    if text.count(",") > MOST_VALUES and _QUOTED.sub("", text).count(",") > MOST_VALUES:  # the parser takes minutes
        raise _refused(path, f"has more than {MOST_VALUES:,} values; split it into several files", None)
    for steps in _DOTTED.finditer(text):
        if steps.group().count(".") > _MOST_STEPS:
            line = text.count("\n", 0, steps.start()) + 1
            raise _refused(path, f"has a key of more than {_MOST_STEPS:,} steps", line)
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message, _, place = str(error).rpartition(" (at ")
        numbers = re.findall(r"\d+", place)  # "line 3, column 5)", or "end of document)"
        line = int(numbers[0]) if numbers else text.count("\n") + 1
        raise _refused(path, f"is no TOML: {message} (at {place}", line) from None
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"is no TOML: {_plainly(error)}", None) from None


def _json(path: Path, text: str) -> tuple[Any, Callable[[], speclines.Lines], list[Finding]]:
    doubled = False

    def pairs(given: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal doubled
        data = dict(given)
        doubled = doubled or len(data) < len(given)
        return data

    def constant(name: str) -> Any:
        raise ValueError(f"{name} is no number of JSON")

    try:
        data = json.loads(text, object_pairs_hook=pairs, parse_constant=constant)
    except json.JSONDecodeError as error:
        raise _refused(path, f"is no JSON: {error.msg}, column {error.colno}", error.lineno) from None
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"is no JSON: {_plainly(error)}", None) from None
    places = speclines.json_lines(text)[1] if doubled else []
    found = [
        Finding(where(place), f"the key {short(place[-1])} is here twice", "keep one")
        for place in places[:MOST_FINDINGS]
    ]
    return data, lambda: speclines.json_lines(text)[0], found


def _yaml(path: Path, text: str) -> tuple[Any, Callable[[], speclines.Lines], list[Finding]]:
    try:
        data, lines, found = specyaml.load(text)
    except specyaml.YamlProblem as error:
        raise _refused(path, f"is no YAML for a specification: {error}", error.line) from None
    except ImportError:
        raise _refused(path, f"is YAML. {missing('Reading it', 'yaml')}", None) from None
    return data, lambda: lines, found


def _plainly(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deep"
    text = str(error)  # the interpreter's own text about too long numbers advises to raise its limit
    return "a number in it has thousands of digits" if "integer string conversion" in text else text


def _refused(path: Path, message: str, line: int | None) -> SpecificationError:
    advice = "`callboard init` writes an example" if message == "is empty" else None
    return SpecificationError([Finding("", f"the file {message}", advice, line)], str(path))


def with_lines(found: Sequence[Finding], lines: Callable[[], speclines.Lines]) -> list[Finding]:
    """The findings in the order of the file, with their lines."""
    line_of = {where(place): line for place, line in lines().items()}

    def placed(finding: Finding) -> Finding:
        line = next((line_of[place] for place in around(finding.where) if place in line_of), finding.line)
        return msgspec.structs.replace(finding, line=finding.line or line)

    return sorted(map(placed, found), key=lambda finding: finding.line or 0)
