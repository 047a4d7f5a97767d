"""Whether the functions that unfinished jobs ask for can be found by this program, asked before anything is claimed.

Rules:
- A job that a program submitted may name functions of that program: of its `__main__`, or registered by it. The command
  line has none of them, and a task whose function cannot be found fails for good. So it is left to its program.
- Where somebody runs the journal, nothing is asked: that one has the functions.
- Asking imports modules, as running would. Nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .trouble import Trouble

if TYPE_CHECKING:
    from ...actors.records.entities import WorkstreamRecord
    from ...actors.records.task import TaskRecord
    from ...actors.spec.model import Workstream
    from ...machines.adapt.lifecycle import Lifecycle
    from ..journal.contract import Stored
    from ..journal.location import Store

_MOST = 20  # functions that are listed


def function(name: str) -> Callable[..., Any]:
    """The function of an import path, as this program finds it. Raises BodyNotFound."""
    from ..functions.registry import Bodies, BodyNotFound  # noqa: PLC0415 - heavy

    if name.startswith("__main__:"):
        text = (
            "is in the main module of another program; only functions of modules of their own are found from everywhere"
        )
        raise BodyNotFound(f"{name!r} {text}")
    return Bodies().callable_body(name)


def own_lifecycles(paths: Sequence[str] | None) -> list[Lifecycle]:
    """The lifecycles under these import paths, by those paths and by their own names. Raises Trouble."""
    from ...actors.machines.lifecycles import Lifecycles  # noqa: PLC0415 - heavy
    from ..functions.import_paths import find, look_in  # noqa: PLC0415

    if paths:  # else nothing is to be found there, and much that is imported later might be taken from there
        look_in(str(Path.cwd()))
    known = Lifecycles(resolve=find)
    try:
        for path in paths or ():
            known.find(path)
            known.find(find(path))
    except (LookupError, ValueError) as error:
        raise Trouble(str(error.args[0])) from None
    return known.own


def refuse_unless_found(reader: Stored, journal: Store) -> None:
    """Raise Trouble, with all of them, if the unfinished jobs ask for functions that cannot be found here.

    Who runs the journal has them. So those of a database are other nodes' affair, as long as there are any; and of a
    file that somebody runs, only that is said: raises JournalLocked.
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
    raise Trouble(
        "\n  ".join(
            [f"Unfinished jobs in {in_words(journal)} ask for functions that cannot be found:", *missing[:_MOST], *more]
        )
        + "\nNothing was changed. Start the program that submitted them: it goes on with them when it opens this "
        "journal. Or install the modules, or run this from the folder where they are with PYTHONPATH=. in front, as in "
        "`PYTHONPATH=. callboard resume`: modules of the present folder are not found by themselves. `callboard cancel "
        "JOB` gives a job up; for something else, use another journal (--journal FILE)."
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
    told: set[str] = set()

    def look(name: str) -> Callable[..., Any]:
        try:
            return function(name)
        except BodyNotFound as error:
            told.add(str(error))
            raise

    over = tuple(f"tasks[{task.index}]." for task in tasks if task.finished_at is not None and task.state in ENDED)
    for finding in findings(spec, bodies=look):
        if finding.message in told and not finding.where.startswith(over):
            yield f"job {run.job_id}: {finding.where}: {finding.message}"
