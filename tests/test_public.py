"""The public names: pinned, each there, each lazily imported, and typed as what it is."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import callboard
from callboard import client, testing

PUBLIC = """
Actor ActorError ActorStopped Alert Approval ApprovalExpired ApprovalRejected AskCycleError AskTimeout AttemptOver
AttemptRecord Breaker BreakerHandle Check CheckFailed ChildFailed ChildJob CircuitOpen Clause CommandFailed Condition
Context DeadLetter Decision DecisionConflict DecisionRefused Defaults Directive Dropped EntityRef Fire FireFailed
GuardRejected HealthChecks Hook InvalidTransitionError JobExists JobFailed JobHandle JournalCorrupt JournalError
JournalLocked JournalMissing JournalTooNew JournalUnwritable LeaseLost Lifecycle LogConflict Machine MachineActor
MachineConflict MachineNotFound MachineRecord MachineRef MailboxFull NameTaken NoEventLoop Node NotSerialisable Notice
Outcome PendingApproval Permanent Phase RayCluster RayUnavailable ReceiveFailed Ref Refusal RequestIdReused Restart
RestartLimitReached Retry RetryAfter RunFile Runtime RuntimeClosed SecretMissing SpecificationError State Strategy
Supervision Task TaskCancelled TaskContext TaskHandle TaskRecord Terminated Timed Tool Transition Transitioned
VirtualClock Worker WorkerHandle WorkerRecord Workstream load load_machine
""".split()  # noqa: SIM905 - a name a word is what a reader compares

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


KIT = ("callboard.testing", "callboard.runtime.testing")


def test_no_program_pays_for_what_only_tests_need() -> None:
    names = ", ".join(sorted(PUBLIC))
    assert not {name for name in modules_after(f"from callboard import {names}") if name.startswith(KIT)}


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(callboard, name).__name__ == name
    assert name in dir(callboard)


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    tree = ast.parse(Path(callboard.__file__).read_text(encoding="utf-8"))
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    shown = {
        alias.name: f"callboard.{statement.module}"
        for statement in blocks[0].body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert shown == {name: f"callboard.{module}" for name, module in callboard._MODULES.items()}  # type: ignore[attr-defined]
    assert set(shown) == set(PUBLIC)


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Approvall'"):
        callboard.Approvall  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_imports_nothing_else() -> None:
    assert not {name for name in modules_after("import callboard") if name.startswith("callboard.")}
    assert not modules_after("import callboard") & HEAVY


def test_the_runtime_imports_what_is_heavy_on_first_use_only() -> None:
    names = ", ".join(sorted(PUBLIC))
    assert not modules_after(f"from callboard import {names}") & HEAVY
