"""Which rows of an application's own machines its tests took: what `pytest --callboard-coverage` reports.

Rules
-----
- A machine counts that a module below pytest's root folder has by a name, that a `MachineActor` was spawned with, or of
  which a row was taken. What lies in `site-packages` is not looked through; our own machines, and the published
  lifecycles, never count.
- Machines of one name and with the same rows are one: a restart makes one again from the table in the journal. Several
  of one name with other rows are told apart by where they are: "door (shop.doors:DOOR)".
- A row is taken when an entity takes it (of whatever runtime of this process, real or virtual), or when
  `Machine.transition` returns it to code that is not ours. What is only asked about, or refused, is not.
- pytest's plugin imports this if it is told to report, and it listens while tests run. Else production has none of it.
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

from ...actors.kernel import entity as entities
from ...actors.machines.kind import MachineKind
from ...actors.user_code import is_a
from ...machines import Machine, Transition
from ...machines.builtin.table import MACHINES
from ...machines.lifecycles import PUBLISHED
from ...machines.rows import title

_OURS: Final = __name__.partition(".")[0]
_Key: TypeAlias = tuple[str, tuple[str, ...]]  # of a machine: its name, and its rows in words
_INSTALLED: Final = frozenset({"site-packages", "dist-packages"})


class Coverage:
    """The rows that were taken of each machine that counts, for modules below `root`."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._seen: dict[int, tuple[Machine, set[int]]] = {}  # by identity, with the places of the rows taken
        self._found: dict[str, tuple[tuple[str, ...], set[int]]] = {}  # by what it is called: its rows, those taken

    def meet(self, machine: Machine) -> set[int]:
        """Have a machine count. Returns the places of those of its rows that were taken."""
        return self._seen.setdefault(id(machine), (machine, set()))[1]

    def take(self, machine: Machine, row: Transition) -> None:
        """Note a row that was taken."""
        self.meet(machine).update(place for place, one in enumerate(machine.transitions) if one is row)

    @contextmanager
    def listening(self) -> Generator[None, None, None]:
        """Hear of what is spawned, taken and asked meanwhile."""
        before, asked, made = entities.observe_transition, Machine.transition, MachineKind.__init__

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
            if caller is None or not _is_ours(caller.f_globals.get("__name__")):  # ours tells what it takes
                self.take(machine, row)
            return row

        @wraps(made)
        def make(kind: MachineKind, *args: Any, **named: Any) -> None:
            made(kind, *args, **named)
            self.meet(kind.machine)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(entities, "observe_transition", observe)
            patch.setattr(Machine, "transition", transition)
            patch.setattr(MachineKind, "__init__", make)
            yield

    def finish(self) -> None:
        """Look for the machines that no test has used, and put together what was seen of those that are alike."""
        places: dict[int, str] = {}  # by identity
        for machine, module, variable in _declared(self._root):
            self.meet(machine)
            if id(machine) not in places or _assigns(module, variable):  # others only import it from there
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
        """One line for each machine: how many rows it has, and how many were taken, and not."""
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
    """What each machine is called: its name, and where several have that, in which module and by which variable."""
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
    """The machines that modules below a folder have by a name, with the module and the name."""
    for name, module in [*sys.modules.items()]:
        if type(module) is not ModuleType or _is_ours(name):  # a lazy one would be imported by looking at it
            continue
        held = vars(module)
        file = held.get("__file__")
        if not isinstance(file, str):
            continue
        path = Path(file).resolve()
        if path.is_relative_to(root) and _INSTALLED.isdisjoint(path.relative_to(root).parts):
            yield from ((value, module, variable) for variable, value in [*held.items()] if is_a(value, Machine))


def _assigns(module: ModuleType, variable: str) -> bool:
    """Whether the module's own code assigns that, and does not import it."""
    try:
        body = ast.parse(inspect.getsource(module)).body
    except (OSError, TypeError, SyntaxError):
        return False
    targets = [target for node in body if isinstance(node, ast.Assign) for target in node.targets]
    targets += [node.target for node in body if isinstance(node, ast.AnnAssign)]
    return any(isinstance(target, ast.Name) and target.id == variable for target in targets)


class CoveragePlugin:
    """Listens while the tests run, reports at the end, and fails the run if it was told to.

    Raises pytest.UsageError where pytest-xdist is to run the tests: what other processes take is not heard of.
    """

    def __init__(self, config: pytest.Config) -> None:
        if config.getoption("dist", "no") != "no":
            raise pytest.UsageError(
                "--callboard-coverage hears of what is taken in pytest's own process only, and pytest-xdist runs the "
                "tests in others: leave out -n (or say -n 0)"
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
        """Decide about the run."""
        if not self._ran:
            return
        self._coverage.finish()
        if self._fails and session.exitstatus == pytest.ExitCode.OK and any(self._coverage.missing()):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, exitstatus: int) -> None:
        """Print the table, and the rows that no test took. A run that was broken off says nothing of them."""
        if not self._ran or exitstatus not in {pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED}:
            return
        missing = [*self._coverage.missing()]
        terminalreporter.section("transitions of your machines")
        for line in (*self._coverage.table(), *missing):
            terminalreporter.write_line(line)
        if missing and self._fails:
            terminalreporter.write_line("the run fails because of these rows (--callboard-coverage-fail)", red=True)
