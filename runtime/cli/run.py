"""`callboard run FILE`: submit a specification file's workstream, and run it to its end."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from ..journal.location import Store, in_words, target_of
from .boards import Board, Place
from .command_errors import CommandError
from .hints import hint
from .nodes import node_settings
from .onray import Address, Engine, cluster_at, on_ray
from .options import DRAIN, JOURNAL, AsJson, DrainDeadline, JsonLog, Lease, Node, Plain

if TYPE_CHECKING:
    from ...actors.records.entities import JobRecord
    from ...actors.spec.model import Workstream
    from ..handles.jobs import JobHandle
    from ..jobs import submissions
    from ..jobs.same_workstream import WorkstreamComparison
    from ..journal.contract import Reader
    from ..runtime import Runtime
    from ..specfiles.workstream_file import RunFile

File = Annotated[Path, typer.Argument(metavar="FILE", help="A specification: .toml, .yaml or .json.")]
Id = Annotated[
    str | None,
    typer.Option("--id", metavar="JOB", help="The job's id. The same file with the same id is the same job."),
]


class ExistingJob(StrEnum):
    """The handling of an existing job that has the id."""

    JOIN = "join"
    REFUSE = "refuse"
    REPLACE_ENDED = "replace_ended"


WhereItExists = Annotated[
    ExistingJob,
    typer.Option(
        "--existing",
        help="What to do if a job has the --id already: show it if it is the same (join), run nothing (refuse), or "
        "replace it if it has ended (replace_ended).",
    ),
]
Lifecycle = Annotated[
    str | None,
    typer.Option(
        "--lifecycle",
        metavar="NAME",
        help="The lifecycle of all its entities: pipeline, orchestration, fleet, guarded, execution, own, or the "
        "import path of one.",
    ),
]


DagFile = Annotated[
    Path | None,
    typer.Option(
        "--dag",
        metavar="FILE",
        help="A DAG file (.json, .toml, .yaml) with the dependencies of tasks, if the specification has none.",
    ),
]


def run(
    file: File,
    *,
    journal: Place = JOURNAL,
    jsonl: JsonLog = None,
    as_json: AsJson = False,
    job_id: Id = None,
    existing: WhereItExists = ExistingJob.JOIN,
    plain: Plain = False,
    lifecycle: Lifecycle = None,
    dag: DagFile = None,
    node: Node = None,
    lease: Lease = None,
    engine: Engine = None,
    address: Address = None,
    drain_deadline: DrainDeadline = DRAIN,
) -> None:
    """Run a specification file, and show its progress.

    Ctrl+C claims no more tasks and lets running ones end; a second one stops them, without counting their attempts; a
    third one exits at once. `callboard resume` continues the job. With --url the runtime there runs the job, and Ctrl+C
    only ends the view.
    """
    from ..errors import JobExists  # noqa: PLC0415 - heavy
    from ..jobs.submissions import check_existing, check_job_id  # noqa: PLC0415 - heavy
    from ..runtime import Runtime  # noqa: PLC0415 - heavy
    from ..specfiles.workstream_file import load  # noqa: PLC0415
    from .functions import function  # noqa: PLC0415
    from .session import Session, see_through, view  # noqa: PLC0415
    from .spans import span  # noqa: PLC0415

    if job_id is not None:
        try:
            check_job_id(job_id)
        except ValueError as error:
            raise CommandError(str(error)) from None
    elif existing is not ExistingJob.JOIN:
        raise CommandError(f"--existing {existing} is about a job with the same id: give an id, too (--id JOB).")
    how = check_existing(existing, job_id)
    if isinstance(journal, Board):
        from .follow import see_there  # noqa: PLC0415 - heavy

        if address is not None:
            raise CommandError("--address cannot be used with --url: the runtime there has its own workers.")
        if jsonl is not None:
            raise CommandError("--jsonl cannot be used with --url: the runtime there writes its own log.")
        if node is not None or lease is not None:
            raise CommandError("--node and --lease cannot be used with --url: the runtime there has its own.")
        asked = on_ray(load(file, lifecycle=lifecycle, dag=dag), engine, None, here=False)
        raise typer.Exit(see_there(journal, asked, job_id, how, as_json=as_json, plain=plain))
    asked, draining = load(file, functions=function, lifecycle=lifecycle, dag=dag), span(drain_deadline)
    as_node = node_settings(journal, node, lease)
    asked, ray = on_ray(asked, engine, address), cluster_at(address)

    def opened() -> Runtime:
        return Runtime(
            target_of(journal), workers=asked.workers, jsonl=jsonl, lifecycle=asked.workstream.lifecycle, ray=ray,
            drain_deadline=draining, **as_node,
        )  # fmt: skip

    _refuse_a_second(asked, journal, job_id, how, opened)

    async def begin(runtime: Runtime) -> list[JobHandle]:
        try:
            return [await runtime.submit(asked.workstream, id=job_id, existing=how)]
        except JobExists as error:
            raise CommandError(str(error)) from None

    raise typer.Exit(see_through(opened, begin, Session(view(as_json=as_json, plain=plain), draining)))


def _refuse_a_second(
    asked: RunFile, journal: Store, job_id: str | None, existing: submissions.Existing, opened: Callable[[], Runtime]
) -> None:
    """Refuse to run a workstream beside an unfinished run of itself, in one folder.

    Also refuses another workstream's id, and jobs in the journal that this program cannot run. It is checked before the
    journal is opened, since opening it continues all its unfinished jobs.
    """
    from ..jobs.same_workstream import SAME  # noqa: PLC0415 - heavy
    from ..jobs.submissions import taken  # noqa: PLC0415 - heavy
    from .functions import refuse_unless_found  # noqa: PLC0415
    from .reading import LIVING, owner_of, reading_if_used  # noqa: PLC0415

    with reading_if_used(journal) as reader:
        if reader is None:
            return
        hold = _holder(opened(), asked.workstream, reader)
        if job_id is not None:
            record = reader.job(job_id)
            comparison = hold(record) if record is not None and existing == "join" else SAME
            refused = taken(job_id, record, reader.archived(job_id), comparison, existing)
            if refused is not None:
                raise CommandError(str(refused))
        for job in reader.jobs(states=LIVING, limit=10_000):
            if job.name == asked.workstream.name and job.id != job_id:
                owner = owner_of(journal)
                way = f"Finish it with {hint('resume')}" if owner is None else f"{owner} runs it: wait for its end"
                raise CommandError(
                    f"{asked.workstream.name!r} is unfinished in {in_words(journal)}, as job {job.id}. {way}, give it "
                    f"up with {hint(f'cancel {quote(job.id)}')}, or use another journal (--journal FILE)."
                )
        refuse_unless_found(reader, journal)


def _holder(runtime: Runtime, workstream: Workstream, reader: Reader) -> Callable[[JobRecord], WorkstreamComparison]:
    """Return a function that compares the workstream with a job's. The runtime stays closed.

    Raises SpecificationError.
    """
    import msgspec  # noqa: PLC0415

    from ..functions.registry import fingerprint_of, prepare  # noqa: PLC0415
    from ..jobs.same_workstream import SAME, compared  # noqa: PLC0415
    from ..runtime import services_of  # noqa: PLC0415 - heavy

    bodies, lifecycles = services_of(runtime).bodies, services_of(runtime).lifecycles
    ready = prepare(workstream, bodies, durable=True, lifecycles=lifecycles)
    fingerprint = fingerprint_of(msgspec.json.encode(ready), ready.folder)

    def hold(job: JobRecord) -> WorkstreamComparison:
        same = job.fingerprint == fingerprint
        return SAME if same else compared(bodies, reader.spec(job.stream), ready)

    return hold
