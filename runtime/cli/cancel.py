"""`callboard cancel JOB[/TASK]`: cancel a job, or one of its tasks, durably.

If a runtime has the journal open, it does it. If none has a file open, this command does it at once: it opens the
journal without workers, so that only the hooks of the cancelled tasks run. A command for a database waits in the inbox:
a program that opens a database becomes a node, gets all its jobs, and this one does not have their functions.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..journal.location import target_of
from .acting import TIMEOUT, AsJson, By, JournalCommand, Reason, RequestId, Target, Timeout, acting, address, find
from .boards import Place
from .command_errors import FAILED, CommandError, print_error, print_to_stderr
from .last import end_soon
from .options import JOURNAL, MaybeTask

if TYPE_CHECKING:
    from ...actors.messages.notices import Notice
    from ..runtime import Runtime
    from .acting import Found

_LONGEST = 60.0  # seconds to wait for the end of a cancelled job: its hooks have their own limits
Force = Annotated[bool, typer.Option("--force", help="Cancel at once: without a grace period, and without the hooks.")]


def cancel(
    target: Target,
    task: MaybeTask = None,
    *,
    force: Force = False,
    journal: Place = JOURNAL,
    reason: Reason = "cancelled by the user",
    by: By = None,
    request_id: RequestId = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Cancel a job, or one of its tasks."""
    from ..errors import JournalLocked  # noqa: PLC0415
    from .reading import owner_of, reading  # noqa: PLC0415
    from .words import ENDED  # noqa: PLC0415

    act = acting(journal, "cancel", request_id=request_id, timeout=timeout, as_json=as_json)
    with reading(journal) as reader:
        named = find(reader, target, task)
    if named.state in ENDED and request_id is None:
        raise CommandError(f"{named.kind} {named.id} has ended already: {named.state}.", FAILED)
    arguments = {"reason": reason, "force": force, "by": act.who(by)}
    act.check(f"{named.kind} {named.id}", arguments)
    if isinstance(act, JournalCommand) and isinstance(act.journal, Path) and owner_of(journal) is None:
        act.refuse(named.kind, address(named), f"{named.kind} {named.id}", arguments)
        with suppress(JournalLocked):  # a runtime may just have opened it
            _cancel_here(act, named, arguments)
            return
    act.on(named.kind, address(named), f"{named.kind} {named.id}", arguments, detail=reason)


def _cancel_here(act: JournalCommand, named: Found, arguments: dict[str, Any]) -> None:
    import anyio  # noqa: PLC0415 - heavy

    anyio.run(_cancel, act, named, arguments)


async def _cancel(act: JournalCommand, named: Found, arguments: dict[str, Any]) -> None:
    from ..runtime import Runtime, services_of  # noqa: PLC0415

    runtime, events = Runtime(target_of(act.journal), workers=()), set[str]()
    services = services_of(runtime)

    def trouble(notice: Notice) -> None:
        events.add(notice.event)
        if notice.event != "threads_left":  # the process ends without waiting for them
            print_to_stderr(notice.text)

    runtime.on_trouble = trouble
    services.hub.last_resort = None  # `trouble` prints the notices
    try:
        async with runtime:
            await _cancelled(runtime, act, named, arguments)
    except BaseException as error:
        end_soon(services.abandoned_threads, partial(print_error, error))
        raise
    code = FAILED if "journal_incomplete" in events else 0
    end_soon(services.abandoned_threads, lambda: code)
    if code:
        raise typer.Exit(code)


async def _cancelled(runtime: Runtime, act: JournalCommand, named: Found, arguments: dict[str, Any]) -> None:
    import anyio  # noqa: PLC0415

    from ...actors.records.task import TaskRecord  # noqa: PLC0415
    from ...machines import InvalidTransitionError  # noqa: PLC0415
    from ..commands.idempotency import RequestIdReused  # noqa: PLC0415
    from ..commands.wire_errors import CommandAnswer, answer_to  # noqa: PLC0415
    from .summary import summary  # noqa: PLC0415

    shown = f"{named.kind} {named.id}"
    task = named.name if isinstance(named, TaskRecord) else ""
    job_id = named.job_id if isinstance(named, TaskRecord) else named.id
    job = await runtime.job(job_id)
    try:
        if not task:
            await job.cancel(**arguments, request_id=act.request_id)
        else:
            await job.task(task).cancel(**arguments, request_id=act.request_id)
    except (InvalidTransitionError, RequestIdReused) as error:
        act.print_answer(shown, answer_to(error))
    if task:
        record = job.task(task).record
        act.print_answer(
            shown, CommandAnswer("task", record.id, str(record.state)), record.reason or arguments["reason"]
        )
        return
    with anyio.move_on_after(_LONGEST):
        await job.wait()
    act.print_answer(shown, CommandAnswer("job", job.id, job.state), summary(job.tasks()))
