"""Functions by name: the names in a journal, and how a restart finds the functions.

Rules:
- The journal holds text: an import path (`import_paths.py`), or the name of a function that the application
  registered (`Bodies.register`, `@runtime.task`). Registered names contain no colon.
- A path is written only if it finds the same function again. A lambda or a function inside a function has no path: a
  durable journal refuses it; a volatile one keeps it under a local name until `release`.
- A registered function may have further names: those that it had before. They may be paths, and take precedence over
  the object of the path: so a function that was moved or renamed is found under its names in journals.
- The stored name of a module beside a specification has its folder (`placed`), so that one name finds one
  function in every process.
- Resolving imports modules, and says in plain words what is missing.

| name | looks like | found again by |
| --- | --- | --- |
| import path | `shop.jobs:build`, `steps@/srv/left:go` | importing the module |
| of a program | `__main__@/srv/crates.py:weigh` | that program (`main_program.py`) |
| registered | `billing.charge` | the application registers it before it opens its runtime |
| local | `make.<locals>.build#3` | this process only |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import islice
from threading import Lock
from typing import Any, TypeVar, cast

import msgspec

from ...actors.spec.backoff import WaitError, encode_wait, is_strategy
from ...actors.spec.fields import kind_of
from ...actors.spec.lifecycles import Lifecycles
from ...actors.spec.model import ON_CLUSTER, Alert, Approval, Check, Condition, Hook, Retry, Task, Workstream
from ...actors.spec.schema import Finding, Path, beside, short, where
from ...actors.spec.validate import SpecificationError, approval_problems, examined
from ...actors.user_code import class_name, contained, is_a, message_of, plain, plain_text, shown
from ...machines.keywords import did_you_mean
from ..dispatch.threads import in_thread
from .import_paths import (
    REMEDY,
    BodyNotFound,
    NoPath,
    find,
    follow,
    located,
    look_in,
    parts_of,
    path_of,
    spoken,
    standing,
    wants_too_much,
)
from .lifecycles import named, within
from .main_program import NOT_OF_A_FILE

__all__ = [
    "Bodies",
    "BodyNotFound",
    "NoPath",
    "kind_of",
    "located",
    "look_in",
    "path_of",
    "placed",
    "prepare",
    "prepared",
]


class CanonicalForm(msgspec.Struct, frozen=True):
    """The meaning of a workstream: its JSON, without the folder of its own modules.

    bare: without any folder of modules. called: its functions by their stored names, and by their present names.
    """

    whole: bytes
    bare: bytes
    called: list[tuple[str, str]]


MOST_ALIASES = 1_000
"""The most further names of a function."""
LARGE = 2_000
"""The number of tasks above which a thread prepares a workstream. So many take a few hundredths of a second."""

Body = Callable[..., Any]
F = TypeVar("F", bound=Body)
Part = TypeVar("Part", Alert, Check, Condition, Hook)


class Bodies:
    """The functions that a runtime knows by name."""

    def __init__(self) -> None:
        self._registered: dict[str, Body] = {}
        self._local: dict[str, Body] = {}
        self._holds: dict[str, int] = {}  # the number of uses of a local name in live workstreams
        self._names: dict[int, str] = {}  # by the id of each function that is registered or local
        self._dropped: deque[Sequence[str]] = deque()  # local names without uses
        self._made = 0
        self._lock = Lock()  # guards the counts: large workstreams are prepared in a thread

    def register(self, func: F, name: str | None = None, aliases: Iterable[str] = ()) -> F:
        """Register a function by `name` (its own unless given), and by its earlier names.

        Raises ValueError for an invalid name, or the name of another function; TypeError for an object that is no
        function.
        """
        if not callable(cast("object", func)):
            raise TypeError(f"a function is registered, and not {shown(func, 60)}")
        if is_a(aliases, str) or not is_a(aliases, Iterable):
            raise TypeError(f"aliases is a list of names, not {shown(aliases, 60)}")
        name = plain_text(getattr(func, "__name__", "") if name is None else name, "the name of a function")
        if not name or not name.isprintable() or name.strip() != name or ":" in name or "#" in name:
            raise ValueError(f"{name!r} cannot be a body's name: give one without ':' and '#'")
        further = [plain_text(one, "the name that a function had") for one in islice(aliases, MOST_ALIASES + 1)]
        if len(further) > MOST_ALIASES:
            raise ValueError(f"a function has at most {MOST_ALIASES:,} aliases")
        for one in (name, *further):
            self._refuse_two(one, func)
        self._registered |= dict.fromkeys((name, *further), func)
        self._names[id(func)] = name
        return func

    def _refuse_two(self, name: str, func: Body) -> None:
        if not name or not name.isprintable() or (":" not in name and "#" in name):
            raise ValueError(
                f"{name!r} cannot be a name that a function had: give a registered name, or an import path"
            )
        other = self._registered.get(name)
        if other is None:
            other = standing(name)
        if other is not None and other is not func:
            raise ValueError(f"another function is {name!r} already, {other!r:.80}: give this one another name")

    def name_of(self, func: Body, *, durable: bool) -> str:
        """The name of a function in a journal. Raises NoPath if a restart would not find the function.

        Without `durable`, a function without a path is kept in memory until `release` has dropped each use.
        """
        while self._dropped:
            self.drop_uses(self._dropped.popleft())
        if id(func) not in self._names:
            try:
                return path_of(func)
            except NoPath:
                if durable:
                    raise
        with self._lock:
            name = self._names.get(id(func)) or self._keep(func)
            if name in self._local:
                self._holds[name] = self._holds.get(name, 0) + 1
        return name

    def resolve(self, name: str) -> Body:
        """The function of a path or name. Raises BodyNotFound. Imports its module if need be."""
        func = self._registered.get(name, self._local.get(name))
        if func is None and ":" in name:
            return follow(name)
        if func is None:
            advice = did_you_mean(name, list(self._registered)) or (
                f'register it, @runtime.task(name={name!r}), or write functions as "module:function"'
            )
            raise BodyNotFound(f"no function is registered as {name!r}; {advice}")
        return func

    @property
    def finder(self) -> Callable[[str], Body] | None:
        """The function that finds functions for checks; None if names are checked elsewhere."""
        return self.callable_body

    def find(self, path: str) -> object:
        """The object of an import path, or a registered function. Raises BodyNotFound."""
        return find(path) if ":" in path and path not in self._registered else self.resolve(path)

    def release(self, workstream: Workstream) -> None:
        """Drop the uses of local functions of a workstream that has ended, or was refused."""
        if self._local:
            _rewrite(workstream, self._drop)

    def hold(self, workstream: Workstream) -> None:
        """Add uses of the local functions of a workstream, until this workstream is released, too."""
        if self._local:
            _rewrite(workstream, self._hold)

    def release_rule(self, rule: Approval) -> None:
        """Drop the uses of local functions of an approval that no body waits for any more."""
        if self._local:
            _with_members(rule, (), self._drop)

    def meaning(self, workstream: Workstream) -> CanonicalForm:
        """The meaning of a workstream, with each function by its present name."""
        names: dict[str, str] = {}
        for name, func in self._registered.items():
            names[name] = kept = self._names[id(func)]
            with suppress(NoPath):
                names[path_of(func)] = kept
        called: list[tuple[str, str]] = []

        def now_called(name: str) -> str:
            now = located(name, None)  # an older version stored `__main__` without its file
            if name not in names and now not in names and (func := standing(now)) is not None:
                with suppress(NoPath):
                    now = path_of(func)  # with a link, the module has another path
            return names.get(name) or names.get(now, now)

        def one(name: object, _: Path) -> object:
            if not isinstance(name, str):
                return name
            called.append((name, now_called(name)))
            return called[-1][1]

        def bare(name: object, _: Path) -> object:
            return parts_of(name)[2] if isinstance(name, str) and ":" in name else name

        same = _rewrite(workstream, one)
        canonical, unplaced = msgspec.json.encode(same), _rewrite(same, bare)
        return CanonicalForm(_unplaced(canonical, workstream.folder), msgspec.json.encode(unplaced), called)

    def is_registered(self, name: str) -> bool:
        """Whether the application has registered a function by that name."""
        return name in self._registered

    def path_for(self, name: str, func: Body) -> str:
        """The import path by which another process of this program finds the function `name`. Raises NoPath."""
        return path_of(func) if name in self._registered or ":" not in name or name.startswith("__main__") else name

    def drop_uses_later(self, names: Sequence[str]) -> None:
        """Drop uses later: the garbage collector may call this in any thread."""
        self._dropped.append(names)

    def drop_uses(self, names: Iterable[str]) -> None:
        """Drop one use of each of these names, if it is local."""
        for name in names:
            self._drop(name, ())

    def _hold(self, name: object, _: Path) -> object:
        if isinstance(name, str) and name in self._local:
            with self._lock:
                self._holds[name] += 1
        return name

    def _drop(self, name: object, _: Path) -> object:
        if isinstance(name, str) and name in self._local:
            with self._lock:
                self._holds[name] -= 1
                if not self._holds[name]:
                    del self._holds[name], self._names[id(self._local.pop(name))]
        return name

    def _keep(self, func: Body) -> str:
        self._made += 1
        name = f"{getattr(func, '__qualname__', type(func).__name__)}#{self._made}".replace(":", "_")
        self._local[name] = func
        self._names[id(func)] = name
        return name

    def callable_body(self, name: str) -> Body:
        """As `resolve`; also check that the function takes at most one argument."""
        func = self.resolve(name)
        if problem := wants_too_much(func):
            raise BodyNotFound(problem)
        return func


def _refuse(value: object) -> object:
    """Raise TypeError for a value that is not plain: a restart could not find its class."""
    found = plain(value)
    advice = f"{type(found).__name__}(...)" if found is not value else "plain values"
    raise TypeError(f"a workstream cannot hold a {class_name(type(value))}: give {advice} of it")


async def prepared(
    workstream: Workstream, bodies: Bodies, *, durable: bool, lifecycles: Lifecycles, folder: str | None = None
) -> tuple[Workstream, bytes]:
    """The prepared workstream, and its JSON. A thread prepares a large one, and does not block the event loop."""

    def work() -> tuple[Workstream, bytes]:
        ready = prepare(workstream, bodies, durable=durable, lifecycles=lifecycles, folder=folder)
        try:
            return ready, msgspec.json.encode(ready, enc_hook=_refuse)
        except BaseException:
            bodies.release(ready)
            raise

    tasks = cast("object", workstream.tasks)
    if type(tasks) is list and len(cast("list[object]", tasks)) > LARGE:
        return await in_thread("work", work)
    return work()


def prepare(
    workstream: Workstream,
    bodies: Bodies,
    *,
    durable: bool,
    source: str | None = None,
    lifecycles: Lifecycles | None = None,
    folder: str | None = None,
) -> Workstream:
    """Check a workstream as a whole, and replace its functions and lifecycles by names. Raises SpecificationError with
    all findings.

    durable: whether a restart must be able to find the functions again. source: the specification's name in the error.
    lifecycles: the known lifecycles; the published ones, unless given. folder: where its modules are looked for first
    if it does not name a folder itself.
    """
    try:
        return _prepared(workstream, bodies, durable, source, lifecycles or Lifecycles(), folder)
    except BaseException as error:  # the workstream's values may run code of their own
        if is_a(error, Exception):
            raise
        text = f"it cannot be read: its own code raised {message_of(contained(error))}"
    raise SpecificationError([Finding("", text)], source or "this workstream")


def _prepared(  # noqa: PLR0917 - the arguments of `prepare`
    workstream: Workstream,
    bodies: Bodies,
    durable: bool,
    source: str | None,
    lifecycles: Lifecycles,
    folder: str | None,
) -> Workstream:
    if is_a(workstream.folder, str):
        folder = workstream.folder
    lifecycles = within(lifecycles, folder)
    clean, found = examined(workstream, bodies=finder_in(bodies, folder), lifecycles=lifecycles)
    ready, more = journalable(clean, bodies, durable=durable, folder=folder)
    more += _not_for_processes(ready, bodies)
    if found := found + beside(found, more):
        bodies.release(ready)
        raise SpecificationError(found, source or f"workstream {short(workstream.name)}")
    return named(ready, lifecycles)


def _not_for_processes(workstream: Workstream, bodies: Bodies) -> list[Finding]:
    """A finding for each body that should run in a worker process, but cannot be found there."""
    found: list[Finding] = []
    for index, task in enumerate(workstream.tasks):
        if task.engine in {"process", ON_CLUSTER} and isinstance(task.run, str):
            try:
                if ":" not in task.run:
                    path_of(bodies.resolve(task.run))
                elif task.run.startswith(NOT_OF_A_FILE):
                    raise NoPath(f"{spoken(task.run)!r} is of a program that was not read from a file. {REMEDY}")  # noqa: TRY301
            except BodyNotFound:
                continue  # reported already, or registered later
            except NoPath as error:
                finder = "a worker on Ray" if task.engine == ON_CLUSTER else "a worker process"
                text = f"cannot be found by {finder}: {error}"
                found.append(Finding(where(("tasks", index, "run")), text))
    return found


def prepare_approval(rule: Approval, bodies: Bodies, *, durable: bool, folder: str | None = None) -> Approval:
    """Check an approval that a body asks for, and replace its functions by names. Raises SpecificationError.

    folder: where modules are looked for first.
    """
    found = approval_problems(rule, bodies=finder_in(bodies, folder))

    def name(body: object, path: Path) -> object:
        if not callable(body):
            return located(body, folder) if isinstance(body, str) else body
        try:
            return bodies.name_of(body, durable=durable)
        except NoPath as error:
            found.append(Finding(where(path), str(error)))
            return body

    ready = rule if found else _with_members(rule, (), name)
    if found:
        bodies.release_rule(cast("Approval", ready))
        raise SpecificationError(found, "this approval")
    return cast("Approval", ready)


def finder_in(bodies: Bodies, folder: str | None) -> Callable[[str], Body] | None:
    """The function that finds the functions of a specification in that folder."""
    find_it = bodies.finder
    return None if find_it is None else lambda name: find_it(located(name, folder))


def journalable(
    workstream: Workstream, bodies: Bodies, *, durable: bool, folder: str | None = None
) -> tuple[Workstream, list[Finding]]:
    """The workstream with names in place of its functions, and a finding for each that has none."""
    found: list[Finding] = []
    paths: dict[int, str] = {}  # by the id of a function with a path: many tasks share a body
    places: dict[str, str] = {}  # by a text: its stored form

    def name(body: object, path: Path) -> object:
        if isinstance(body, str):
            if body not in places:
                places[body] = located(body, folder)
            return places[body]
        kept = paths.get(id(body))
        if kept is not None:
            return kept
        try:
            if path[-1] == "wait" and is_strategy(body):
                return encode_wait(body)
            if not callable(body):
                return body
            if problem := wants_too_much(body):
                found.append(Finding(where(path), problem))
                return body
            import_path = bodies.name_of(body, durable=durable)
        except (NoPath, WaitError) as error:
            found.append(Finding(where(path), str(error)))
            return body
        if ":" in import_path:
            paths[id(body)] = import_path
        return import_path

    return _rewrite(workstream, name), found


def fingerprint_of(encoded: bytes, folder: str | None) -> str:
    """The hash that distinguishes a workstream from others of its id. The folders of modules do not count."""
    from hashlib import blake2b  # noqa: PLC0415 - slow to import, and only jobs with an id of the caller's need it

    return blake2b(_unplaced(encoded, folder), digest_size=16).hexdigest()


def _unplaced(encoded: bytes, folder: str | None) -> bytes:
    return encoded if folder is None else encoded.replace(b"@" + msgspec.json.encode(folder)[1:-1] + b":", b":")


def placed(workstream: Workstream) -> Workstream:
    """A journaled specification with the stored form of names: an older version stored the folder only."""
    folder = workstream.folder
    if folder is None:
        return workstream
    places: dict[str, str] = {}

    def place(name: object, _: Path) -> object:
        if not isinstance(name, str):
            return name
        if name not in places:
            places[name] = located(name, folder, program=False)
        return places[name]

    return _rewrite(workstream, place)


Change = Callable[[object, Path], object]


def without_functions(workstream: Workstream) -> tuple[Workstream, dict[Path, object]]:
    """A copy of the workstream with one name in place of each function; and the functions, or their names, by place."""
    found: dict[Path, object] = {}

    def change(body: object, at: Path) -> object:
        found[at] = body
        return "function"

    return _rewrite(workstream, change), found


def _rewrite(workstream: Workstream, change: Change) -> Workstream:
    """A copy of the workstream in which `change` has replaced each function or name."""
    defaults = workstream.defaults
    return msgspec.structs.replace(
        workstream,
        retry=_with_wait(workstream.retry, ("retry",), change),
        defaults=msgspec.structs.replace(defaults, retry=_with_wait(defaults.retry, ("defaults", "retry"), change)),
        tools={
            name: msgspec.structs.replace(tool, retry=_with_wait(tool.retry, ("tools", name, "retry"), change))
            for name, tool in workstream.tools.items()
        },
        tasks=[_task(task, ("tasks", index), change) for index, task in enumerate(workstream.tasks)],
        alerts=[_part(alert, ("alerts", index), change) for index, alert in enumerate(workstream.alerts)],
        hold=_with_members(workstream.hold, ("hold",), change),
        **_calls(workstream, (), change),
    )


def _task(task: Task, at: Path, change: Change) -> Task:
    changed: dict[str, Any] = _calls(task, at, change)
    if task.run is not None:
        run = change(task.run, (*at, "run"))
        if run is not task.run:
            changed["run"] = run
    if task.condition is not None:
        changed["condition"] = _part(task.condition, (*at, "condition"), change)
    if task.hold is not None or task.wait is not None:
        changed |= _shared(task)
    if task.hold is not None:
        changed["hold"] = _with_members(task.hold, (*at, "hold"), change)
    if task.retry is not None:
        changed["retry"] = _with_wait(task.retry, (*at, "retry"), change)
    return msgspec.structs.replace(task, **changed) if changed else task


def _calls(spec: Task | Workstream, at: Path, change: Change) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    if not (spec.checks or spec.cancel_hooks or spec.on_completed or spec.on_failed or spec.on_cancelled):
        return changed
    for name in ("checks", "cancel_hooks", "on_completed", "on_failed", "on_cancelled"):
        parts: Sequence[Any] = getattr(spec, name)
        if parts:
            changed[name] = [_part(part, (*at, name, index), change) for index, part in enumerate(parts)]
    return changed


def _part(part: Part, at: Path, change: Change) -> Part:
    return part if part.run is None else msgspec.structs.replace(part, run=change(part.run, (*at, "run")))


def _with_wait(retry: Retry | None, at: Path, change: Change) -> Retry | None:
    if retry is None or retry.wait is None:
        return retry
    return msgspec.structs.replace(retry, wait=change(retry.wait, (*at, "wait")))


_PLAIN: dict[str, Any] = msgspec.structs.asdict(Task("plain"))
_NOTHING = {name: value for name, value in _PLAIN.items() if type(value) in {list, dict}}


def _shared(task: Task) -> dict[str, Any]:
    """The empty fields of a task, by shared objects: this saves a third of the memory of waiting tasks."""
    return {name: nothing for name, nothing in _NOTHING.items() if getattr(task, name) == nothing}


def _with_members(rule: Approval | None, at: Path, change: Change) -> Approval | None:
    if rule is None or not rule.clauses:
        return rule
    clauses = [
        clause
        if clause.members is None
        else msgspec.structs.replace(clause, members=change(clause.members, (*at, "clauses", index, "members")))
        for index, clause in enumerate(rule.clauses)
    ]
    return msgspec.structs.replace(rule, clauses=clauses)
