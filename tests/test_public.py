"""The public names: pinned, each there, each lazily imported, and typed as what it is."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import callboard
from callboard import client, errors, testing
from callboard.actors.spec.error_names import RENAMED, name_finding
from callboard.machines.lifecycles import pairs
from callboard.runtime.commands.wire_errors import answer_to
from callboard.runtime.engines.failures import type_name

ROOT = Path(__file__).parents[1]

PUBLIC = """
Actor Alert Approval AttemptRecord Breaker BreakerHandle Check ChildJob Clause Condition Context DeadLetter Decision
Defaults Directive Dropped EntityRef Fire HealthChecks Hook JobHandle Lifecycle Machine MachineActor MachineRecord
MachineRef Node Notice Outcome PendingApproval Phase RayCluster Ref Refusal Restart Retry RunFile Runtime State
Strategy Supervision Task TaskContext TaskHandle TaskRecord Terminated Timed Tool Transition Transitioned VirtualClock
Worker WorkerHandle WorkerRecord Workstream load load_machine
""".split()  # noqa: SIM905 - a name a word is what a reader compares

ERRORS = """
ActorError ActorStopped ApprovalExpired ApprovalRejected AskCycle AskTimeout AttemptOver CheckFailed ChildFailed
CircuitOpen CommandFailed DecisionConflict DecisionRefused FireFailed GuardRejected InvalidTransitionError JobExists
JobFailed JournalCorrupt JournalError JournalLocked JournalMissing JournalTooNew JournalUnwritable LeaseLost
LogConflict MachineConflict MachineNotFound MailboxFull NameTaken NoEventLoop NotSerialisable Permanent RayUnavailable
ReceiveFailed RequestIdReused RestartLimitReached RetryAfter RuntimeClosed SecretMissing SpecificationError
TaskCancelled
""".split()  # noqa: SIM905 - a name a word is what a reader compares

RUNTIME = """
approvals breaker breakers caught_up close dead_letters drain events failed_hooks health is_open job journal
kept_notices machine machine_of machines metrics node nodes on_trouble open portal recovered spawn start_worker submit
task worker workers
""".split()  # noqa: SIM905 - as above

TESTING = """
Asked Dies Exits Fails Hangs Probe SimulatedBreaker SimulatedJob SimulatedTask SimulatedWorker Simulation
SimulationError Succeeds Trace VirtualRuntime
""".split()  # noqa: SIM905 - a name a word is what a reader compares

CLIENT = """
AccessRefused Client RemoteBreaker RemoteEvents RemoteJob RemoteMachine RemoteRef RemoteTask RemoteWorker
ServerError ServerUnreachable
""".split()  # noqa: SIM905 - a name a word is what a reader compares

HEAVY = {"asyncio", "httpx", "rich", "sqlite3", "structlog", "tenacity", "trio", "typer", "uvloop", "yaml"}


def modules_after(program: str) -> set[str]:
    """What a fresh interpreter has imported after running `program`."""
    source = str(Path(callboard.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {source!r})\n{program}\nimport json; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


def test_the_public_names_are_these() -> None:
    assert callboard.__all__ == PUBLIC
    assert errors.__all__ == ERRORS


def test_the_public_names_of_the_board_are_these() -> None:
    pytest.importorskip("litestar", reason="the extra `web` is not installed")
    from callboard import web

    assert web.__all__ == ["Token", "board"]


@pytest.mark.parametrize(
    ("name", "extra", "names"),
    [("otel", "opentelemetry", ["Tracing", "observe"]), ("prometheus", "prometheus_client", ["RuntimeCollector"])],
)
def test_the_public_names_for_collectors_are_these(name: str, extra: str, names: list[str]) -> None:
    pytest.importorskip(extra, reason=f"the extra `{name}` is not installed")
    assert import_module(f"callboard.{name}").__all__ == names


def test_the_public_names_for_tests_are_these() -> None:
    assert testing.__all__ == TESTING
    assert all(getattr(testing, name).__name__ == name for name in TESTING)


def test_the_public_names_for_programs_elsewhere_are_these() -> None:
    assert client.__all__ == CLIENT
    assert all(getattr(client, name).__name__ == name for name in CLIENT)


ALL = f"from callboard import {', '.join(PUBLIC)}\nfrom callboard.errors import {', '.join(ERRORS)}"
KIT = ("callboard.testing", "callboard.runtime.testing")


def test_no_program_pays_for_what_only_tests_need() -> None:
    assert not {name for name in modules_after(ALL) if name.startswith(KIT)}


PLACES = [*((callboard, name) for name in PUBLIC), *((errors, name) for name in ERRORS)]


@pytest.mark.parametrize(("place", "name"), PLACES, ids=[name for _, name in PLACES])
def test_every_public_name_is_there(place: ModuleType, name: str) -> None:
    assert getattr(place, name).__name__ == name
    assert name in dir(place)


@pytest.mark.parametrize(("place", "names"), [(callboard, PUBLIC), (errors, ERRORS)], ids=["root", "errors"])
def test_type_checkers_see_the_same_names_from_the_same_modules(place: ModuleType, names: list[str]) -> None:
    tree = ast.parse(Path(str(place.__file__)).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {
        alias.name: f"callboard.{statement.module}"
        for statement in blocks[0].body
        if isinstance(statement, ast.ImportFrom) and statement.module != "errors"
        for alias in statement.names
    }
    assert shown == {name: f"callboard.{module}" for name, module in place._MODULES.items()}
    assert set(shown) == set(names)


# -- errors ----------------------------------------------------------------------------------------------------------


def test_errors_are_called_by_what_happened_and_families_by_their_subject() -> None:
    """The rule of `callboard.errors`: `Error` ends the name of all errors of a subject, and no other."""
    kinds = {name: getattr(errors, name) for name in ERRORS}
    families = {name for name, kind in kinds.items() if len([one for one in kinds.values() if kind in one.__mro__]) > 1}
    assert {name for name in ERRORS if name.endswith("Error")} == {
        "ActorError", "InvalidTransitionError", "JournalError", "SpecificationError",
    }  # fmt: skip
    assert families == {"ActorError", "DecisionRefused", "InvalidTransitionError", "JournalError", "Permanent"}


@pytest.mark.parametrize("name", [*ERRORS, "AskCycleError"])
def test_an_error_is_found_at_its_older_place_with_a_warning_and_is_the_same(name: str) -> None:
    now = RENAMED.get(name, name)
    with pytest.warns(DeprecationWarning, match=rf"^callboard\.{name} is callboard\.errors\.{now} now") as told:
        found = getattr(callboard, name)
    assert found is getattr(errors, now)
    assert told[0].filename == __file__
    assert name not in dir(callboard)


def test_the_older_names_of_errors_are_found_with_a_warning() -> None:
    with pytest.warns(DeprecationWarning, match="AskCycleError is callboard.errors.AskCycle now"):
        from callboard.errors import AskCycleError
    assert AskCycleError is errors.AskCycle
    with pytest.warns(DeprecationWarning, match="pairs.InvalidPairError is now called InvalidPair"):
        from callboard.machines.lifecycles.pairs import InvalidPairError
    assert InvalidPairError is pairs.InvalidPair


@pytest.mark.parametrize("name", ERRORS)
def test_an_error_is_recorded_by_its_public_name_alone(name: str) -> None:
    """What `record.error_type` is and `Breaker(ignore=...)` has: without the module that it is in."""
    kind = getattr(errors, name)
    error = kind.__new__(kind)
    assert type_name(error) == name
    assert name_finding(name, None) is None


def test_what_crosses_to_other_processes_names_errors_by_words_of_its_own() -> None:
    """A command that an older program sent is refused in words that it knows, whatever classes are called here."""
    said = {kind: answer_to(kind("no")).refused for kind in (errors.RequestIdReused, errors.MachineNotFound)}
    said |= {kind: answer_to(kind("no")).refused for kind in (errors.FireFailed, LookupError, ValueError, OSError)}
    assert list(said.values()) == ["reused", "unfound", "fire", "missing", "invalid", "broken"]
    assert answer_to(errors.InvalidTransitionError("job", "running", "pause", frozenset())).refused == "conflict"
    assert answer_to(pairs.InvalidPair("job", "running", "done", frozenset())).refused == "conflict"


def test_no_module_of_ours_asks_for_an_older_name() -> None:
    """Where warnings are errors, everything can be imported."""
    names = [
        f"callboard.{layer}.{'.'.join(path.relative_to(ROOT / layer).with_suffix('').parts)}"
        for layer in ("machines", "actors", "runtime")
        for path in sorted((ROOT / layer).rglob("*.py"))
        if path.name not in {"__init__.py", "__main__.py"}
    ]
    code = f"""
import importlib, warnings
warnings.simplefilter("error", DeprecationWarning)
warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(?!callboard).*")
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as missing:  # an extra that is not installed
        assert not missing.name.startswith("callboard"), missing
"""
    modules_after(code)


# -- signatures ------------------------------------------------------------------------------------------------------

DOORS = ["", ".errors", ".testing", ".client", ".web", ".otel", ".prometheus"]


@pytest.mark.parametrize("door", DOORS)
def test_inspect_has_a_signature_of_every_public_name(door: str) -> None:
    """What an editor shows, and `help`."""
    try:
        module = import_module(f"callboard{door}")
    except ModuleNotFoundError as missing:
        pytest.skip(f"an extra is not installed: {missing}")
    without = []
    for name in module.__all__:
        kind = getattr(module, name)
        own = [one for one in vars(kind) if not one.startswith("_")] if isinstance(kind, type) else []
        for what in (kind, *(found for one in own if inspect.isroutine(found := getattr(kind, one)))):
            try:
                inspect.signature(what)
            except (ValueError, TypeError, NameError) as error:
                without.append(f"{name}: {error}")
    assert without == []


def test_completion_shows_of_a_runtime_what_is_for_users() -> None:
    assert [name for name in dir(callboard.Runtime()) if not name.startswith("_")] == RUNTIME


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Approvall'"):
        callboard.Approvall  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_imports_nothing_else() -> None:
    assert not {name for name in modules_after("import callboard") if name.startswith("callboard.")}
    assert not modules_after("import callboard") & HEAVY


def test_the_runtime_imports_what_is_heavy_on_first_use_only() -> None:
    assert not modules_after(ALL) & HEAVY
