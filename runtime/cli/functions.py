"""The check, before a command runs jobs, that this program finds their functions.

Rules:
- A job that a program submitted may name functions of that program: of its `__main__`, or registered by it. The command
  line does not have them, and a task without its function fails permanently. So such a job is left to its program.
- If a runtime has the journal open, nothing is checked: that runtime has the functions.
- The check imports modules, as a run would. It writes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .command_errors import CommandError
from .hints import hint, place_option

if TYPE_CHECKING:
    from ...actors.records.entities import WorkstreamRecord
    from ...actors.records.task import TaskRecord
    from ...actors.spec.model import Workstream
    from ...machines.adapt.lifecycle import Lifecycle
    from ..journal.contract import Stored
    from ..journal.location import Store

_MOST = 20  # missing functions that are listed


def function(name: str) -> Callable[..., Any]:
    """Find the function of an import path. Raises BodyNotFound."""
    from ..functions.registry import Bodies, BodyNotFound  # noqa: PLC0415 - heavy

    if name.startswith("__main__:"):
        text = "is in the main module of another program; other programs can find only functions of importable modules"
        raise BodyNotFound(f"{name!r} {text}")
    return Bodies().callable_body(name)


def own_lifecycles(paths: Sequence[str] | None) -> list[Lifecycle]:
    """Find the lifecycles under these import paths, also by their own names. Raises CommandError."""
    from ...actors.spec.lifecycles import Lifecycles  # noqa: PLC0415 - heavy
    from ..functions.import_paths import find, look_in  # noqa: PLC0415

    if paths:  # only if needed: later imports could find wrong modules there
        look_in(str(Path.cwd()))
    lifecycles = Lifecycles(resolve=find)
    try:
        for path in paths or ():
            lifecycles.find(path)
            lifecycles.find(find(path))
    except (LookupError, ValueError) as error:
        raise CommandError(str(error.args[0])) from None
    return lifecycles.own


def refuse_unless_found(reader: Stored, journal: Store) -> None:
    """Raise CommandError, with a list, if functions of unfinished jobs cannot be found here.

    A runtime that has the journal open has the functions. So a database is not checked while it has other nodes, and a
    file that a runtime has open is only reported as such: raises JournalLocked.
    """
    from ..journal.location import Database, in_words, owner_of, refuse_in_use  # noqa: PLC0415

    if not isinstance(journal, Database):
        refuse_in_use(journal)
    elif owner_of(journal) is not None:
        return
    missing = list(dict.fromkeys(_missing(reader)))
    if not missing:
        return
    more = [f"… and {len(missing) - _MOST:,} more"] if len(missing) > _MOST else []
    raise CommandError(
        "\n  ".join(
            [f"Unfinished jobs in {in_words(journal)} need functions that cannot be found:", *missing[:_MOST], *more]
        )
        + "\nNothing was changed. Start the program that submitted the jobs: it continues them when it opens this "
        "journal. Or install the modules, or run this command in their folder with PYTHONPATH=. in front, as in "
        f"`PYTHONPATH=. callboard resume{place_option()}`: the present folder is not searched by default. "
        f"{hint('cancel JOB')} gives a job up. For other work, use another journal (--journal FILE)."
    )


def _missing(reader: Stored) -> Iterator[str]:
    import msgspec  # noqa: PLC0415

    from ...actors.spec.model import Workstream  # noqa: PLC0415

    loaded = reader.load()
    tasks: dict[int, list[TaskRecord]] = {}
    for task in loaded.tasks:
        tasks.setdefault(task.workstream, []).append(task)
    decode = msgspec.json.Decoder(Workstream).decode
    for run in loaded.workstreams:
        if run.key in loaded.specs:
            yield from _missing_of(run, decode(loaded.specs[run.key]), tasks.get(run.key, []))


def _missing_of(run: WorkstreamRecord, spec: Workstream, tasks: list[TaskRecord]) -> Iterator[str]:
    from ...actors.spec.validate import findings  # noqa: PLC0415
    from ..functions.registry import BodyNotFound, placed  # noqa: PLC0415
    from .words import ENDED  # noqa: PLC0415

    spec = placed(spec)
    written: set[str] = set()

    def look(name: str) -> Callable[..., Any]:
        try:
            return function(name)
        except BodyNotFound as error:
            written.add(str(error))
            raise

    over = tuple(f"tasks[{task.index}]." for task in tasks if task.finished_at is not None and task.state in ENDED)
    for finding in findings(spec, bodies=look):
        if finding.message in written and not finding.where.startswith(over):
            yield f"job {run.job_id}: {finding.where}: {finding.message}"
