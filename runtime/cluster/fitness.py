"""Whether this node's program can run jobs that it has taken over.

Rules
-----
- It can run a job if it finds every function that is still to be called, and every lifecycle, also of the child jobs:
  a tree of jobs stays together. The search imports modules, as a run would.
- Functions of tasks that have ended are not needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import msgspec

from ...actors.spec.model import Workstream
from ...actors.spec.validate import findings
from ..functions.registry import BodyNotFound, placed

if TYPE_CHECKING:
    from ...actors.records.entities import JobRecord, WorkstreamRecord
    from ...actors.records.loaded import Loaded
    from ...actors.records.task import TaskRecord
    from ...actors.spec.lifecycles import Lifecycles
    from ..functions.registry import Bodies

_ENDED = frozenset({"completed", "failed", "cancelled", "skipped"})


def unfit(loaded: Loaded, bodies: Bodies, lifecycles: Lifecycles) -> dict[int, str]:
    """Find the jobs that cannot run here, with their child jobs: keys, and the missing things."""
    check = _FitnessCheck(loaded, bodies, lifecycles)
    above = {job.key: job.parent for job in loaded.jobs}
    missing: dict[int, str] = {}
    for job in loaded.jobs:
        if (text := check.missing_of(job)) is not None:
            missing.setdefault(_root(job.key, above), text)
    return {key: missing[root] for key in above if (root := _root(key, above)) in missing}


def without(loaded: Loaded, keys: dict[int, str]) -> Loaded:
    """Remove these jobs, and everything that belongs to them."""
    jobs = [job for job in loaded.jobs if job.key not in keys]
    runs = [run for run in loaded.workstreams if run.job not in keys]
    gone = {run.key for run in loaded.workstreams if run.job in keys}
    tasks = [task for task in loaded.tasks if task.workstream not in gone]
    theirs = {task.key for task in loaded.tasks if task.workstream in gone}
    streams = {job.stream for job in loaded.jobs if job.key in keys} - {job.stream for job in jobs}
    return msgspec.structs.replace(
        loaded, jobs=jobs, workstreams=runs, tasks=tasks,
        specs={key: spec for key, spec in loaded.specs.items() if key not in streams},
        approvals=[one for one in loaded.approvals if one.workstream not in gone],
        attempts=[one for one in loaded.attempts if one.task not in theirs],
    )  # fmt: skip


def _root(key: int, above: dict[int, int | None]) -> int:
    """Find a job's topmost ancestor among the loaded jobs."""
    while (parent := above[key]) is not None and parent in above:
        key = parent
    return key


class _FitnessCheck:
    """One check of loaded jobs: each function and each specification is looked up once."""

    def __init__(self, loaded: Loaded, bodies: Bodies, lifecycles: Lifecycles) -> None:
        self._specs = loaded.specs
        self._lifecycles = lifecycles
        self._find = bodies.finder
        self._found: dict[str, Callable[..., Any] | BodyNotFound] = {}
        self._told: set[str] = set()
        self._named: dict[bytes, list[tuple[str, str]]] = {}  # by specification: places and reasons
        self._runs = {run.key: run for run in loaded.workstreams}
        self._tasks: dict[int, list[TaskRecord]] = {}
        for task in loaded.tasks:
            self._tasks.setdefault(task.workstream, []).append(task)

    def missing_of(self, job: JobRecord) -> str | None:
        """Return the first missing thing that a job needs; None if it can run."""
        return next(self._missing_of(job), None)

    def _missing_of(self, job: JobRecord) -> Iterator[str]:
        run, tasks = self._runs.get(job.stream), self._tasks.get(job.stream, [])
        records: list[JobRecord | WorkstreamRecord | TaskRecord] = [job, *([] if run is None else [run]), *tasks]
        for record in records:
            if record.published is not None:
                try:
                    self._lifecycles.get(record.published.lifecycle, record.kind)
                except LookupError as error:
                    yield str(error)
        if self._find is None or (encoded := self._specs.get(job.stream)) is None:
            return
        if encoded not in self._named:
            self._named[encoded] = list(self._missing_in(encoded))
        over = tuple(f"tasks[{one.index}]." for one in tasks if one.finished_at is not None and one.state in _ENDED)
        for where, text in self._named[encoded]:
            if not where.startswith(over):
                yield text

    def _missing_in(self, encoded: bytes) -> Iterator[tuple[str, str]]:
        try:
            spec = placed(msgspec.json.decode(encoded, type=Workstream))
        except (msgspec.MsgspecError, ValueError) as error:
            yield "", f"its specification cannot be read: {error}"
            return
        for finding in findings(spec, bodies=self._look, lifecycles=self._lifecycles):
            if finding.message in self._told:
                yield finding.where, finding.message

    def _look(self, name: str) -> Callable[..., Any]:
        if (found := self._found.get(name)) is None:
            assert self._find is not None  # noqa: S101 - the caller has checked it
            try:
                found = self._find(name)
            except BodyNotFound as error:
                found = error
                self._told.add(str(error))
            self._found[name] = found
        if isinstance(found, BodyNotFound):
            raise found
        return found
