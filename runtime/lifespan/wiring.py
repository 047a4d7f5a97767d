"""How the parts of a runtime are made, opened and connected.

Rules
-----
- Every opened part goes onto the stack of `closing.py`, so that the parts are closed in the reverse order, however far
  the opening came.
- Nothing runs before all parts are made: first the journal is loaded, and the recovery is the first input.
- `opening.py` enters, keeps and leaves the runtime; `platform.py` is the access to this computer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from ...actors.messages.commands import StartWorkers
from ...actors.messages.inputs import RECOVER, Adopt, InboxTaken
from ...actors.records.loaded import Loaded
from ...actors.restore import make_supervisor
from ...actors.spec.model import Worker, Workstream
from ...actors.times import seconds
from ...actors.workers.tool_limits import RUNTIME
from ..commands.idempotency import Requests
from ..commands.inbox import InboxReader
from ..dispatch.dispatcher import Dispatcher
from ..dispatch.runners import RunnerPool
from ..dispatch.threads import at_once
from ..dispatch.watchdog import Watchdog
from ..errors import LeaseLost
from ..execution.calls import CallRunner
from ..flows.flows import Flows
from ..functions.lifecycles import by_name, check_loaded
from ..functions.registry import prepare
from ..handles.machines import Machines
from ..handles.targets import perform
from ..handles.workers import check_workers, default_workers, plain_worker
from ..jobs.child_jobs import Children
from ..jobs.submissions import Submissions
from ..journal import open_journal
from ..journal.contract import Entry, Journal
from ..observation.live import LiveTasks
from ..observation.progress_file import ProgressFile
from ..observation.progress_writer import ProgressWriter
from .closing import CLOSING, HOPELESS, Closing
from .draining import archive_ended
from .platform import Platform
from .settings import SETTINGS_OF, Settings

if TYPE_CHECKING:
    from ..cluster.handover import HandingOver
    from ..journal.cluster import Cluster
    from ..journal.jsonl import JsonlLog
    from ..observation.progress_writer import ProgressMedium
    from ..services import RuntimeServices


class Wiring:
    """Makes the parts of one runtime, and puts them into its services."""

    def __init__(self, settings: Settings, services: RuntimeServices, platform: Platform, closing: Closing) -> None:
        self.on_broken: Callable[[BaseException | None], None] = lambda _: None
        """Called with the error that ends the runtime, after another runtime has taken over its jobs."""
        self.settled = False
        """Whether the runtime has stopped in good order, and all its effects are durable."""
        self._settings = settings
        self._services = services
        self._platform = platform
        self._closing = closing
        self.log: JsonlLog | None = None
        """The log of transitions."""
        self._workers: tuple[Worker, ...] = ()
        self._handing: HandingOver | None = None

    # -- opening -------------------------------------------------------------------------------------------------------

    async def load(self, runners: RunnerPool, start: Callable[[Callable[[], Any]], object]) -> InboxReader:
        """Make all parts, and load the journal. Nothing runs yet; the recovery is the first input."""
        services, settings, platform, jobs = self._services, self._settings, self._platform, self._services.jobs
        services.dispatcher = Dispatcher(
            clock=settings.clock, runners=runners, supervision=settings.supervision, dead_letters=services.dead_letters
        )
        journal = services.journal = self._opened()
        services.ask_by(platform.new_queries())
        host = services.host = platform.new_host()
        services.status.loaded = True
        host.notices.on_trouble = services.on_trouble
        host.hub.on_unlogged = host.notices.log_failed
        services.requests = Requests(host, journal, services.read, settings.keep_requests)
        self._closing.stack.callback(self._say_threads_left)  # runs last
        self._closing.stack.callback(services.dispatcher.close)
        loaded = await self._open_journal(journal)
        host.on_health = self._look_whether_lost
        if (cluster := journal.cluster) is not None:
            self._join(cluster, start)
        jobs.archiving = loaded.archiving
        host.hub.told = loaded.last_seq
        machines = services.machines = Machines(services, host, start)
        if services.node is not None:
            from ..handles.remote_machines import RemoteMachines  # noqa: PLC0415 - only among nodes

            machines.abroad = RemoteMachines(services.node, machines)
        await machines.recall()
        services.submissions = Submissions(services, host, services.ids, jobs.handle)
        flows = Flows(host, runners, services.read, lambda: journal.reader, jobs.find)
        services.children = Children(services, host, runners, flows)
        await platform.open_engines(runners, flows)
        inbox = services.inbox = InboxReader(
            partial(perform, services), host, services.requests, services.read_own, start,
            left_up_to=loaded.last_command, lost=None if services.node is None else services.node.lost,
        )  # fmt: skip
        machines.on_spawn = inbox.spawned
        inbox.on_notified = self._notified
        if loaded.jobs:
            loaded.awaited = await inbox.awaited()
        self._begin(loaded, flows, start)
        await platform.end_leftovers(loaded, {platform.copy})  # after the last check that may refuse the opening
        return inbox

    async def catch_up(self, inbox: InboxReader) -> None:
        """Recover, execute the commands that lie in the inbox, start the workers. The dispatcher runs already."""
        services, host, jobs = self._services, self._services.host, self._services.jobs
        services.status.running = services.status.open = True
        if services.shared_tools is not None:
            await services.shared_tools.begin()
        if services.membership is not None:
            await services.membership.join()
        jobs.taking_inbox = True
        await inbox.take_left()  # commands that were sent while no runtime was open come before any task
        jobs.taking_inbox = False
        host.tell(InboxTaken())
        for job in host.jobs.values():
            jobs.recover(job)
        host.tell(StartWorkers(self._workers))
        await host.barrier()

    def _begin(self, loaded: Loaded, flows: Flows, start: Callable[[Callable[[], Any]], object]) -> None:
        services, host, settings, platform = self._services, self._services.host, self._settings, self._platform
        bodies, lifecycles, durable = services.bodies, services.lifecycles, services.journal.durable_medium
        outputs = platform.new_outputs()
        services.finder.look_beside(loaded)
        check_loaded(loaded, lifecycles)
        workers = settings.workers
        if workers is not default_workers():  # which are valid: a check makes decoders, which takes milliseconds
            workers = tuple(map(plain_worker, workers))
            check_workers(workers, lifecycles)
        self._workers = tuple(by_name(worker, lifecycles) for worker in workers)
        said = Workstream(RUNTIME, tools=settings.tools, alerts=settings.alerts)
        if said.tools or said.alerts:
            said = prepare(said, bodies, durable=durable, source=SETTINGS_OF, lifecycles=lifecycles)
        supervisor = make_supervisor(
            host, settings.defaults, loaded, tools=said.tools, alerts=said.alerts, health=settings.health_checks,
            lifecycles=lifecycles, node="" if services.journal.cluster is None else services.journal.cluster.name,
        )  # fmt: skip
        host.kernel, host.workforce = supervisor.kernel, supervisor.workforce
        services.live = LiveTasks(host.kernel, services.hub, services.dispatcher.timers)
        host.caller = services.caller = CallRunner(
            host.kernel, platform.engines, bodies, outputs=outputs, tell=host.tell, notice=host.notice,
            timers=services.dispatcher.timers, marks=platform.marks, secrets=settings.secrets,
            children=services.children, flows=flows, live=services.live, durable=durable,
        )  # fmt: skip
        self._show_progress(start)
        if services.node is not None:
            from ..cluster.shared_text import SharedText  # noqa: PLC0415 - most runtimes are alone

            SharedText(services.node, services.live)
        host.on_job_over, host.on_job_here = services.jobs.over, services.jobs.here
        host.begin_keeping()
        for job in host.jobs.values():
            services.jobs.here(job)
        host.later(RECOVER)  # in the queue of commands, so that commands of the inbox run after the recovery
        services.journal.append(Entry([], [], pruned_at=host.now(), tidy=True))  # in the commit of the recovery

    def _show_progress(self, start: Callable[[Callable[[], Any]], object]) -> None:
        """Let other nodes, and commands that read the journal, see the progress of running bodies."""
        services, medium = self._services, self._progress_medium()
        if medium is None:
            return
        writer = ProgressWriter(
            medium, services.live, services.dispatcher.timers, services.host.monotonic,
            ask=services.queries.read_live, start=start, notice=services.host.notice,
        )  # fmt: skip
        self._closing.at_end(writer.close)

    def _progress_medium(self) -> ProgressMedium | None:
        """Where other processes read it; None for a journal that no other process reads."""
        journal = self._services.journal
        if journal.cluster is not None:
            from ..cluster.live_progress import SharedProgress  # noqa: PLC0415 - most runtimes are alone

            return SharedProgress(journal.cluster)
        if journal.shared is None:
            return None
        from ..journal.sqlite.journal import SqliteJournal  # noqa: PLC0415 - it is loaded only if used

        return ProgressFile(journal.path) if isinstance(journal, SqliteJournal) else None

    def watch_loop(self, runners: RunnerPool) -> None:
        """Start the watchdog, which reports an event loop that does not turn."""
        threshold = seconds(self._settings.health_checks.loop_blocked)
        if threshold:
            host = self._services.host
            host.watchdog = Watchdog(
                threshold, post=self._services.dispatcher.call_threadsafe, busy=lambda: runners.runners > runners.idle,
                tell=host.notices.tell_blocked,
            )  # fmt: skip
            self._closing.stack.callback(host.watchdog.close)

    # -- other nodes ---------------------------------------------------------------------------------------------------

    def _join(self, cluster: Cluster, start: Callable[[Callable[[], Any]], object]) -> None:
        """Become a node of the journal. The node leaves once nothing runs any more and all is durable."""
        from ..cluster.handover import HandingOver  # noqa: PLC0415 - most runtimes are alone, and need none of it
        from ..cluster.membership import Membership  # noqa: PLC0415
        from ..cluster.node_context import Ask, NodeContext  # noqa: PLC0415
        from ..cluster.tools import ToolsService  # noqa: PLC0415

        services, host, queries = self._services, self._services.host, self._services.queries
        ask = Ask(queries.read, queries.read_shared, queries.read_own, queries.read_live, queries.read_lease)
        node = services.node = NodeContext(cluster, host, ask, start)
        host.on_close.append(node.close)
        services.membership = Membership(node, host, self.adopt, services.bodies, services.finder.look_beside)
        self._handing = HandingOver(node, host)
        node.lost = self._fenced
        host.on_health = services.membership.look_now
        self._closing.at_end(services.membership.close)
        services.shared_tools = ToolsService(node, host)
        services.membership.also.append(services.shared_tools.renew)
        self._closing.at_end(services.shared_tools.close)

    async def hand_over(self) -> bool:
        """While the runtime drains: hand over jobs to other nodes if they may go. Returns whether there was one."""
        return self._handing is not None and await self._handing.look()

    def _notified(self) -> None:
        """Called when another process has notified the journal."""
        if self._services.membership is not None:
            self._services.membership.notified()
        if self._services.shared_tools is not None:
            self._services.shared_tools.notified()

    def _look_whether_lost(self) -> None:
        """Check whether another runtime has taken over a journal that has one owner."""
        health = self._services.journal.health
        if health.lost:
            self._fenced(LeaseLost(health.reason or "another runtime has taken over the journal"))

    def _fenced(self, lost: LeaseLost) -> None:
        """End at once, since other nodes have taken over the jobs of this node."""
        services, host = self._services, self._services.host
        if services.status.broken is None:
            who = f"node {host.kernel.node!r}" if services.node is not None else "this runtime"
            text = f"{who} was fenced, and stops all that it runs: {lost}"
            host.notice("lease_lost", "error", text, raised=lost)
        self.on_broken(lost)
        if services.membership is not None:
            services.membership.lost(lost)

    async def adopt(self, loaded: Loaded) -> None:
        """Resume the jobs and machines that this node has taken over. Returns once that is durable.

        A decision in the inbox is applied before its approval expires. Raises RuntimeClosed.
        """
        host, inbox, jobs = self._services.host, self._services.inbox, self._services.jobs
        await self._platform.end_leftovers(loaded, set())
        loaded.awaited = await inbox.awaited()
        jobs.archiving |= loaded.archiving
        jobs.arriving = {job.id: loaded.last_seq for job in loaded.jobs}
        host.tell(Adopt(loaded=loaded))
        await host.barrier()
        jobs.arriving = {}
        for machine in loaded.machines:
            inbox.spawned(machine.name)
        await inbox.take()
        host.tell(InboxTaken())

    # -- the journal ---------------------------------------------------------------------------------------------------

    def _opened(self) -> Journal:
        target = self._settings.target
        if target is not None and not isinstance(target, str | Path):
            return target
        return open_journal(target, node=self._settings.node, lease=self._settings.lease)

    async def _open_journal(self, journal: Journal) -> Loaded:
        log: JsonlLog | None = None
        if self._settings.jsonl is not None:
            from ..journal.jsonl import JsonlLog  # noqa: PLC0415 - most runtimes keep no such log

            log = JsonlLog(self._settings.jsonl, trouble=self._log_unwritable)
            shared = journal.shared
            log.check_place(shared if isinstance(shared, Path) else None)
            self._closing.stack.callback(log.close)

        def opening() -> Loaded:
            return journal.open(
                on_durable=self._services.host.journal_moved,
                call_threadsafe=self._services.dispatcher.call_threadsafe,
                after_commit=None if log is None else log.write,
            )

        loaded = await at_once(opening) if journal.durable_medium else opening()
        self._closing.stack.push_async_callback(self._shut_journal)
        if log is not None:
            self.log = log
            await at_once(self._open_log, log)
        return loaded

    def _open_log(self, log: JsonlLog) -> None:
        from ..journal.sqlite.opening import note_log  # noqa: PLC0415 - as above

        journal = self._services.journal
        log.open(journal.own)
        if journal.shared is not None:
            note_log(journal.shared, log.path)

    def _log_unwritable(self, path: Path, text: str) -> None:
        """Emit a notice. Called in the thread of the journal's writer."""
        notice = partial(self._services.host.notice, "log_unwritable", "warning", text, path=str(path))
        self._services.dispatcher.call_threadsafe(notice)

    async def _shut_journal(self) -> None:
        services, closing, journal = self._services, self._closing, self._services.journal
        deadline = self._settings.drain_deadline
        if not closing.answers:
            deadline = min(deadline, closing.patience)
        if isinstance(services.status.broken, LeaseLost):
            deadline = 0.0  # the journal accepts nothing from this runtime any more
        if services.jobs.archiving and self.settled and (shared := journal.shared) is not None:
            if self.log is not None:
                await at_once(self.log.catch_up)
            await archive_ended(services.host, shared, max(deadline, CLOSING))
        await services.hub.keep(services.queries.read_at_last, closing.patience)
        services.host.end_keeping()
        whole = False
        if journal.durable_medium:
            limit = deadline + closing.patience
            with closing.cut_off(limit), anyio.move_on_after(limit + HOPELESS):
                whole = await at_once(journal.shut, deadline, abandon=True)
        else:
            whole = journal.shut(deadline)
        if not whole and not isinstance(services.status.broken, LeaseLost):  # `_fenced` has reported that
            self._say_incomplete()

    def _say_incomplete(self) -> None:
        reason = self._services.journal.health.reason or "the writes have not ended in time"
        text = (
            f"the last changes are not in the journal, and the runtime closed without them: {reason}. What was "
            "acknowledged is kept; the next start treats the rest as interrupted"
        )
        self._services.host.notice("journal_incomplete", "error", text, reason=reason)

    def _say_threads_left(self) -> None:
        """Emit a notice about threads that still run: the program waits for them before it ends."""
        left = self._services.abandoned_threads.threads() if self._services.abandoned_threads.stopped else []
        if left:
            text = (
                f"threads of {', '.join(left)} still run, and nothing can end them: asyncio, trio or Python waits for "
                "them before the program ends. Write what blocks as a plain function, without `await`, or give it a "
                "limit of its own (docs/embedding.md)"
            )
            self._services.host.notice("threads_left", "warning", text, left=left)
