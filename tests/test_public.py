"""The public names: pinned, present, imported lazily, and with their types."""

from __future__ import annotations

import ast
import inspect
import json
import subprocess
import sys
import textwrap
from enum import Enum
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
MachineRef Node Notice Outcome PendingApproval Phase Progress RayCluster Ref Refusal Restart Retry RunFile Runtime
State StepRecord Strategy Supervision Task TaskContext TaskHandle TaskRecord Terminated Timed Tool Transition
Transitioned VirtualClock Worker WorkerHandle WorkerRecord Workstream load load_machine step
""".split()  # noqa: SIM905 - a name a word is what a reader compares

ERRORS = """
ActorError ActorStopped ApprovalExpired ApprovalRejected AskCycle AskTimeout AttemptOver CheckFailed ChildFailed
CircuitOpen CommandFailed DecisionConflict DecisionRefused FireFailed FlowAsleep FlowChanged GuardRejected
InvalidTransitionError
JobExists JobFailed JournalCorrupt JournalError JournalLocked JournalMissing JournalTooNew JournalUnwritable LeaseLost
LogConflict MachineConflict MachineNotFound MailboxFull MessageInvalid NameTaken NoEventLoop NotSerialisable Permanent
RayUnavailable ReceiveFailed ReceiveTimeout RequestIdReused RestartLimitReached RetryAfter RuntimeClosed SecretMissing
SpecificationError StepFailed TaskCancelled TooManyMessages
""".split()  # noqa: SIM905 - a name a word is what a reader compares

SHOWN = """
Actor: receive started stopped
Alert: command max_alerts period run severity shell timeout
Approval: clauses expires people self_approval
AttemptRecord: attempt claimed_at cpu_seconds drained_at duration_ms end ended_at error exit_code key kind left_behind
  output_path output_size peak_memory_bytes pid process_started task task_id tool traceback worker_id
Breaker: cooldown failure_threshold ignore lifecycle success_threshold
BreakerHandle: parked record ref reset retry_in state tool trip
Check: changed command file imports imports_js run shell timeout
ChildJob: id job send send_blocking state wait wait_blocking
Clause: members people person team
Condition: command run shell timeout
Context: after ask reply_later self spawn stop unwatch watch
DeadLetter: error message reason recipient
Decision: at by met reason verdict
Defaults: cancel_timeout checkpoint checkpoint_on cleanup_on_cancel heartbeat_timeout kill_grace max_error_repeats
  max_losses on_exhausted on_loss park_cooldown queue_timeout recovery_timeout retry save_partial_output timeout
  total_timeout unroutable_timeout validation_timeout
Directive: ESCALATE RESTART RESUME STOP
Dropped: count
EntityRef: ask ended events facts fire kind name record state tell
Fire: by event facts metadata reason request_id
HealthChecks: cooldown drain_deadline expire interval loop_blocked misses restarts start_timeout
Hook: command run shell timeout
JobHandle: approvals approve attempts cancel children elsewhere ended events id messages output parent pause progress
  published record ref refresh reject resume retry send skip state steps task tasks wait
Lifecycle: defaults derive events facts kind machine name optional phase phases skips
Machine: can_transition check dot endless initial is_terminal mermaid name states svg table timed timed_in transition
  transitions valid_events
MachineActor: facts fields folder machine on_enter on_event on_exit timed with_facts
MachineRecord: created_at definitions due due_at epoch facts finished_at id key kind machine name previous_state
  published reason run seq shown started_at state told untold updated_at
MachineRef: ask elsewhere ended events facts fire name record state tell
Node: epoch jobs name place seen_at started_at state
Notice: at entity_id error event facts job_id kind severity text
Outcome: error job_id ok raise_for_state result results results_as shown state tasks tracebacks
PendingApproval: anybody approval approved_by decisions entity_id expires_at job_id job_name kind left_at missing
  not_for people self_approval since submitted_by task teams wait_until
Phase: APPROVED BUSY CANCELLED CANCELLING CIRCUIT_OPEN CLOSED COMPLETED DECIDING DRAINING EXECUTING EXPIRED FAILED
  HALF_OPEN HELD IDLE INITIALIZING OPEN PAUSED PENDING PLANNED QUEUED READY RECOVERING REJECTED RETRYING RUNNING
  SHUTDOWN SKIPPED SUBMITTED TERMINATED TIMED_OUT UNRESPONSIVE VALIDATING WAITING
Progress: done of text
RayCluster: address options runtime_env
Ref: ask name offer stop stopped tell tell_threadsafe
Refusal: error
Restart: PERMANENT TEMPORARY TRANSIENT
Retry: base_delay jitter max_attempts max_deferrals max_delay max_retries wait
RunFile: path workers workstream
Runtime: approvals breaker breakers caught_up close dead_letters drain events failed_hooks health is_open job journal
  kept_notices machine machine_of machines metrics node nodes on_trouble open portal recovered spawn start_worker
  submit task worker workers
State: bounded_by name phase terminal
StepRecord: attempt awaits began_at branch call cancelled_at capabilities category dropped due_at duration_ms ended_at
  engine error error_type failed flow function given given_up key kind label message name number raw_arguments raw_given
  raw_result result round state task task_id tool tool_use traceback tries unroutable waits_for_tool waits_for_worker
  worker_id worker_use
Strategy: ONE_FOR_ALL ONE_FOR_ONE REST_FOR_ONE
Supervision: backoff_max backoff_min decide delay intensity period stable_after strategy
Task: after args cancel_hooks cancel_timeout capabilities checkpoint checks cleanup_on_cancel command condition cwd
  depends_on engine env expected_exit_codes heartbeat_timeout hold kill_grace lifecycle max_error_repeats max_losses
  max_output name on_cancelled on_completed on_exhausted on_failed on_loss optional priority queue_timeout receive
  retry run save_partial_output secrets shell timeout tool total_timeout unroutable_timeout wait
TaskContext: again approval args attempt cancelled checkpoint details emit gather gather_blocking heartbeat job_id log
  now now_blocking progress publish publish_blocking random random_blocking receive receive_blocking results saved
  secrets send send_blocking sleep sleep_blocking step step_blocking submit submit_blocking task token uuid
  uuid_blocking version version_blocking wait_for_approval workstream_id
TaskHandle: approve attempts cancel elsewhere name progress published record ref reject reset retry send skip state
  steps stream
TaskRecord: allowed anew args attempt cancel checked checkpoint circuit_state claimed_at cpu_seconds created_at
  decisions
  deferrals details due_at durable_wait ended_at epoch error_category error_count error_repeats error_type
  execution_ms exit_code
  failed_attempts final finished_at first_queued_at flow generation granted hold_until id index is_final job_id key
  kind last_error limit lost_attempts max_attempts max_losses most_attempts name on_exhausted on_loss optional
  output_path output_size parked peak_memory_bytes pid place previous_state probe process process_started produced
  published queued_at raw_checkpoint raw_details raw_result ready reason result rounds routable run seq shown
  standing started_at state test_results token told trouble unmet untold updated_at validation_ms wait_until worker
  worker_id workstream workstream_id
Terminated: error reason ref
Timed: after event state
Tool: breaker max_parallel retry timeout
Transition: event forced guard guard_name severity source target
Transitioned: at attempt entity_id entity_seq event from_phase from_state job_id kind metadata phase reason run seq
  severity timestamp to_state worker_id workstream_id
VirtualClock: advance jump_utc monotonic on_advance time
Worker: abilities capabilities capacity count each engine labels lifecycle metadata name recycle_after resources
WorkerHandle: assigned capabilities capacity engine last_seen missed name pause record ref resume shut_down start
  state terminate
WorkerRecord: assigned capabilities capacity created_at drain_until draining due_at engine epoch finished_at id key
  kind labels metadata missed name pause_reason paused previous_state program published reason recycle_after resources
  resume_at retired run seq shown started_at state told untold updated_at
Workstream: alerts archive cancel_hooks checks cwd deadline defaults description env folder hold lifecycle
  max_parallel name on_cancelled on_completed on_failed priority request_id_headers retry secrets tasks tools wait
  worker_count
Client: approvals breaker breakers events health job kept_notices machine machines metrics start_worker submit worker
  workers
RemoteBreaker: kind name parked record ref refresh reset retry_in state tool trip
RemoteJob: approvals approve attempts cancel children ended events id messages output parent pause progress published
  record ref refresh reject resume retry send skip state steps task tasks wait
RemoteMachine: ask ended facts fire kind name record refresh state
RemoteRef: ask fire kind name state
RemoteTask: approve attempts cancel name progress published record ref refresh reject reset retry send skip state
  steps stream
RemoteWorker: assigned capabilities capacity engine kind last_seen missed name pause record ref refresh resume
  shut_down start state terminate
"""
"""What completion in an editor shows of each class of applications and of clients: what its reference and docs/
describe."""

TESTING = """
Asked Dies Exits Fails Hangs Probe Replay SimulatedBreaker SimulatedJob SimulatedTask SimulatedWorker Simulation
SimulationError Succeeds Trace VirtualRuntime check_replay
""".split()  # noqa: SIM905 - a name a word is what a reader compares

CLIENT = """
AccessRefused Client RemoteBreaker RemoteEvents RemoteJob RemoteMachine RemoteRef RemoteTask RemoteWorker
ServerError ServerUnreachable
""".split()  # noqa: SIM905 - a name a word is what a reader compares

HEAVY = {"asyncio", "httpx", "rich", "sqlite3", "structlog", "tenacity", "trio", "typer", "uvloop", "yaml"}


def modules_after(program: str) -> set[str]:
    """Return the modules that a fresh interpreter has imported after running `program`."""
    source = str(Path(callboard.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {source!r})\n{program}\nimport json; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=600)
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


IDLE = """
import tempfile
import anyio
from callboard import Runtime, Task, Workstream

async def body(): pass

async def main():
    with tempfile.TemporaryDirectory() as folder:
        async with Runtime(folder + "/state.db") as runtime:
            job = await runtime.submit(Workstream("one", tasks=[Task("a", run=body)]))
            await job.wait()

anyio.run(main)
"""
ELSEWHERE = """
machines.docs machines.draw runtime.cli runtime.client runtime.cluster.handover runtime.cluster.membership
runtime.cluster.node_context runtime.cluster.tools runtime.commands.other_nodes runtime.documents
runtime.engines.command.engine runtime.engines.command.watcher runtime.engines.process.child
runtime.engines.process.engine runtime.engines.process.process_pool runtime.engines.process_watcher runtime.engines.ray
runtime.engines.steps runtime.engines.workers runtime.handles.breakers
runtime.handles.remote_jobs runtime.handles.remote_machines runtime.jobs.difference runtime.jobs.worker_requests
runtime.journal.archive runtime.lifespan.signals
runtime.journal.cluster runtime.journal.jsonl runtime.journal.memory runtime.journal.postgres runtime.specfiles
runtime.web
""".split()  # noqa: SIM905 - as above
"""The modules that a runtime does not need if it runs a function in its own process, beside a file."""


def test_an_embedded_runtime_pays_only_for_what_it_uses() -> None:
    """Each module takes time of a program's start, and memory as long as it runs."""
    had = modules_after(IDLE)
    asked = tuple(f"callboard.{name}" for name in ELSEWHERE)
    assert not {name for name in had if name in asked or name.startswith(tuple(f"{one}." for one in asked))}
    assert not had & {
        "difflib",
        "importlib.abc",
        "importlib.resources",
        "pkgutil",
        "resource",
        "runpy",
    } - modules_after("")


def test_a_program_that_opens_no_runtime_does_not_pay_for_its_engines() -> None:
    had = modules_after("from callboard import Runtime, Task, Workstream")
    assert "callboard.runtime.lifespan.platform" in had
    assert not had & {f"callboard.runtime.engines.{one}.engine" for one in ("command", "process")}
    of_anyio = modules_after("import anyio.abc, anyio.lowlevel, anyio.to_thread")  # an older one imports more
    assert not had & {"anyio.from_thread", "concurrent.futures", "shutil", "tempfile"} - of_anyio


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


OLD_PLACES = [ROOT / "runtime" / "otel.py", ROOT / "runtime" / "prometheus.py"]
"""Modules that warn when they are imported."""


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
    """`record.error_type` and `Breaker(ignore=...)` have this name, without the module of the error."""
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
        if path.name not in {"__init__.py", "__main__.py"} and path not in OLD_PLACES
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
    """An editor and `help` show these signatures."""
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


@pytest.mark.parametrize("door", DOORS)
def test_a_signature_shows_no_object_that_nobody_can_read(door: str) -> None:
    try:
        module = import_module(f"callboard{door}")
    except ModuleNotFoundError as missing:
        pytest.skip(f"an extra is not installed: {missing}")
    unread = []
    for name in module.__all__:
        kind = getattr(module, name)
        own = [one for one in dir(kind) if not one.startswith("_")] if isinstance(kind, type) else []
        for what in (kind, *(found for one in own if inspect.isfunction(found := getattr(kind, one)))):
            shown = [repr(one.default) for one in inspect.signature(what).parameters.values()]
            unread += [f"{name}: {what}: {one}" for one in shown if " object at 0x" in one]
    assert unread == []


def is_set(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"


def shown_of(kind: type) -> list[str]:
    """The names without an underscore that an editor shows of a class: its own, inherited, and set in its methods."""
    if issubclass(kind, Enum):
        return sorted(kind.__members__)  # the rest are the methods of its texts
    names = {*dir(kind)}
    for one in kind.__mro__:
        if one.__module__.startswith("callboard."):
            names |= {*vars(one).get("__annotations__", {})}
            tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
            set_there = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and is_set(node)]
            names |= {node.attr for node in set_there}
    return sorted(name for name in names if not name.startswith("_"))


def test_completion_shows_of_each_public_class_what_is_for_users() -> None:
    pinned = {}
    for line in SHOWN.strip().replace("\n  ", " ").splitlines():
        name, _, names = line.partition(":")
        pinned[name] = names.split()
    every = {name: getattr(callboard, name) for name in PUBLIC}
    of_clients = {name: getattr(client, name) for name in pinned.keys() - every.keys()}
    kinds = {name: kind for name, kind in (every | of_clients).items() if isinstance(kind, type)}
    assert {name: shown_of(kind) for name, kind in kinds.items()} == pinned


def test_another_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Approvall'"):
        callboard.Approvall  # type: ignore[attr-defined]  # noqa: B018


def test_importing_it_imports_nothing_else() -> None:
    assert not {name for name in modules_after("import callboard") if name.startswith("callboard.")}
    assert not modules_after("import callboard") & HEAVY


def test_the_runtime_imports_what_is_heavy_on_first_use_only() -> None:
    assert not modules_after(ALL) & HEAVY
