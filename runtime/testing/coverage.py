"""Which rows of an application's machines its tests took, for `pytest --callboard-coverage`.

Rules
-----
- A machine counts if a module below pytest's root folder has it under a name, if a `MachineActor` was spawned with it,
  or if one of its rows was taken. `site-packages` is not searched; Callboard's own machines, and the published
  lifecycles, never count.
- Machines of one name with the same rows are one: a restart makes a machine again from its table in the journal.
  Machines of one name with different rows are distinguished by their place: "door (shop.doors:DOOR)".
- A row is taken when an entity takes it (in any runtime of this process, real or virtual), or when
  `Machine.transition` returns it to the application's code. A row that is only looked up, or refused, is not taken.
- pytest's plugin imports this module only for a report, and it observes only while tests run. Production never
  imports it.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from types import ModuleType
from typing import Any, Final, TypeAlias

import pytest

from ...actors.kernel import observing
from ...actors.machines.kind import MachineKind
from ...actors.user_code import is_a
from ...machines import Machine, Transition
from ...machines.builtin.table import MACHINES
from ...machines.lifecycles import PUBLISHED
from ...machines.rows import title

_OURS: Final = __name__.partition(".")[0]
_Key: TypeAlias = tuple[str, tuple[str, ...]]  # identifies a machine: its name, and its rows in words
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


class Coverage:
    """The taken rows of each machine that counts, for modules below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._seen: dict[int, tuple[Machine, set[int]]] = {}  # by identity, with the indexes of the taken rows
        self._found: dict[str, tuple[tuple[str, ...], set[int]]] = {}  # by shown name: its rows, and the taken ones

    def meet(self, machine: Machine) -> set[int]:
        """Count a machine. Returns the indexes of its taken rows."""
        return self._seen.setdefault(id(machine), (machine, set()))[1]

    def take(self, machine: Machine, row: Transition) -> None:
        """Note a row that was taken."""
        self.meet(machine).update(place for place, one in enumerate(machine.transitions) if one is row)

    @contextmanager
    def listening(self) -> Generator[None, None, None]:
        """Observe spawned machines, taken rows and lookups meanwhile."""
        before, asked, made = observing.observe_transition, Machine.transition, MachineKind.__init__

        def observe(machine: Machine, row: Transition) -> None:
            self.take(machine, row)
            if before is not None:
                before(machine, row)

        @wraps(asked)
        def transition(machine: Machine, *args: Any, **named: Any) -> Transition:
            __tracebackhide__ = True
            row = asked(machine, *args, **named)
            frame = inspect.currentframe()
            caller = None if frame is None else frame.f_back
            if caller is None or not _is_ours(caller.f_globals.get("__name__")):  # Callboard reports its rows itself
                self.take(machine, row)
            return row

        @wraps(made)
        def make(kind: MachineKind, *args: Any, **named: Any) -> None:
            made(kind, *args, **named)
            self.meet(kind.machine)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(observing, "observe_transition", observe)
            patch.setattr(Machine, "transition", transition)
            patch.setattr(MachineKind, "__init__", make)
            yield

    def finish(self) -> None:
        """Find the machines that no test has used, and merge equal machines."""
        places: dict[int, str] = {}  # by identity
        for machine, module, variable in _declared(self._root):
            self.meet(machine)
            if id(machine) not in places or _assigns(module, variable):  # other modules only import it from there
                places[id(machine)] = f"{module.__name__}:{variable}"
        found: dict[_Key, set[int]] = {}
        where: dict[_Key, str] = {}
        for machine, taken in self._seen.values():
            found.setdefault(_key(machine), set()).update(taken)
            if (place := places.get(id(machine))) is not None:
                where.setdefault(_key(machine), place)
        for machine in (*MACHINES.values(), *PUBLISHED.values()):
            found.pop(_key(machine), None)
        called = _called(sorted(found), where)
        self._found = {called[key]: (key[1], taken) for key, taken in sorted(found.items())}

    def table(self) -> Iterator[str]:
        """One line for each machine: the numbers of all its rows, of taken and of missing ones."""
        if not self._found:
            yield "no Machine of yours was loaded"
            return
        width = max(len("machine"), *map(len, self._found)) + 1
        yield f"{'machine':{width}}{'taken':>7}{'rows':>7}{'missing':>9}"
        for name, (rows, taken) in self._found.items():
            yield f"{name:{width}}{len(taken):7}{len(rows):7}{len(rows) - len(taken):9}"

    def missing(self) -> Iterator[str]:
        """The rows that no test took, in words."""
        for name, (rows, taken) in self._found.items():
            yield from (f"not taken by any test: {name}: {row}" for place, row in enumerate(rows) if place not in taken)


def _is_ours(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] == _OURS


def _key(machine: Machine) -> _Key:
    return str(machine.name), tuple(title(row) for row in machine.transitions)


def _called(keys: Sequence[_Key], where: Mapping[_Key, str]) -> dict[_Key, str]:
    """The shown name of each machine: its name, with module and variable if several machines share it."""
    names = Counter(name for name, _ in keys)
    called: dict[_Key, str] = {}
    for key in keys:
        called[key] = key[0] if names[key[0]] == 1 else f"{key[0]} ({where.get(key, 'in no module')})"
    many = Counter(called.values())
    seen: Counter[str] = Counter()
    for key, name in called.items():
        seen[name] += 1
        if many[name] > 1:
            called[key] = f"{name} #{seen[name]}"
    return called


def _declared(root: Path) -> Iterator[tuple[Machine, ModuleType, str]]:
    """The machines in variables of modules below a folder, with module and variable."""
    for name, module in [*sys.modules.items()]:
        if type(module) is not ModuleType or _is_ours(name):  # reading a lazy module would import it
            continue
        variables = vars(module)
        file = variables.get("__file__")
        if not isinstance(file, str):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(root) and _INSTALLED.isdisjoint(path.relative_to(root).parts):
            yield from ((value, module, variable) for variable, value in [*variables.items()] if is_a(value, Machine))


def _assigns(module: ModuleType, variable: str) -> bool:
    """Whether the module's own code assigns `variable`, and does not import it."""
    try:
        body = ast.parse(inspect.getsource(module)).body
    except (OSError, TypeError, SyntaxError):
        return False
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    return any(isinstance(target, ast.Name) and target.id == variable for target in targets)


class CoveragePlugin:
    """Observes the tests, reports at the end, and fails the run if requested.

    Raises pytest.UsageError if pytest-xdist runs the tests: other processes cannot be observed.
    """

    def __init__(self, config: pytest.Config) -> None:
        if config.getoption("dist", "no") != "no":
            raise pytest.UsageError(
                "--callboard-coverage observes pytest's own process only, and pytest-xdist runs the "
                "tests in other processes: leave out -n (or use -n 0)"
            )
        self._coverage = Coverage(config.rootpath)
        self._fails = bool(config.getoption("--callboard-coverage-fail"))
        self._ran = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, object, object]:
        """Listen."""
        if session.config.getoption("collectonly"):
            return (yield)
        self._ran = True
        with self._coverage.listening():
            return (yield)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Decide whether the run fails."""
        if not self._ran:
            return
        self._coverage.finish()
        if self._fails and session.exitstatus == pytest.ExitCode.OK and any(self._coverage.missing()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        """Print the table and the rows that no test took. An interrupted run prints nothing."""
        if not self._ran or exitstatus not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            return
        missing = [*self._coverage.missing()]
        terminalreporter.section("transitions of your machines")
        for line in (*self._coverage.table(), *missing):
            terminalreporter.write_line(line)
        if missing and self._fails:
            terminalreporter.write_line("the run fails because of these rows (--callboard-coverage-fail)", red=True)
