"""Loading: what a journal holds of the living, and the kernel that is made with it. How is in `snapshot.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ..machines.lifecycles import Lifecycles
from ..records.entities import (
    ApprovalRecord,
    BreakerRecord,
    JobRecord,
    MachineRecord,
    OutboxRow,
    WorkerRecord,
    WorkstreamRecord,
)
from ..records.task import AttemptRecord, TaskRecord
from ..spec.limits import NO_TOOLS
from ..spec.model import Alert, Defaults, HealthChecks, Tool
from ..tasks.checks import CANCELLING, MAY_ASK
from ..workers.alerts import Alerter
from ..workers.scheduler import SchedulerActor
from ..workers.supervisor import SupervisorActor
from .kernel import WORKERS_KEPT, Kernel
from .snapshot import take_in
from .transaction import Port


class Loaded(msgspec.Struct):
    """What a journal holds of the loaded."""

    jobs: list[JobRecord] = []  # not terminal
    workstreams: list[WorkstreamRecord] = []  # the last run of each of those jobs, if it has begun one
    specs: dict[int, bytes] = {}  # of those jobs, by `JobRecord.stream`; and what those machines run by
    tasks: list[TaskRecord] = []  # all tasks of those workstreams, ended ones too: dependents need their results
    approvals: list[ApprovalRecord] = []  # that bodies of those tasks have asked for, ended ones too
    workers: list[WorkerRecord] = []  # not terminal
    breakers: list[BreakerRecord] = []
    machines: list[MachineRecord] = []  # not terminal
    attempts: list[AttemptRecord] = []  # without an end
    outbox: list[OutboxRow] = []
    last_key: int = 0  # the highest key and fencing token ever given
    last_seq: int = 0  # the highest transition number
    last_command: int = 0  # the number of the newest row of the inbox: later ones were put there while this one ran it
    incarnations: dict[str, int] = {}  # the last incarnation by worker name
    paused: dict[str, str] = {}  # why an operator paused the last incarnation, by worker name
    archiving: bool = False  # whether jobs that have ended are still to be moved out
    awaited: dict[str, float] = {}  # "JOB" or "JOB/TASK" of each decision in the inbox: when the first was made

    @property
    def hooks(self) -> set[int]:
        """The tokens of the hooks that may have run when the process ended: they are run again."""
        cancelling = {one.cancel.token for one in self._asked() if one.cancel is not None and one.state == CANCELLING}
        return cancelling | {row.key for row in self.outbox}

    @property
    def asking(self) -> set[int]:
        """The keys of the entities whose condition or check may have run then: it is asked anew."""
        return {one.key for one in self._asked() if one.state in MAY_ASK}

    def _asked(self) -> list[TaskRecord | WorkstreamRecord]:
        return [*self.workstreams, *self.tasks]


def make_kernel(
    port: Port,
    defaults: Defaults,
    loaded: Loaded,
    *,
    tools: Mapping[str, Tool] = NO_TOOLS,
    alerts: Sequence[Alert] = (),
    health: HealthChecks | None = None,
    lifecycles: Lifecycles | None = None,
    node: str = "",
) -> Kernel:
    """Make a kernel with its root and its scheduler, and with what was loaded.

    node: its name among those that share its journal; "" where it has that alone.
    """
    kernel = Kernel(port, defaults, tools, lifecycles, node)
    kernel.alerter = Alerter(kernel, alerts)
    kernel.supervisor = SupervisorActor(kernel, health or HealthChecks())
    kernel.scheduler = SchedulerActor(kernel)
    kernel.key = loaded.last_key
    kernel.seq = loaded.last_seq
    kernel.incarnations = dict(loaded.incarnations)
    if len(kernel.incarnations) >= WORKERS_KEPT:  # the journal may have let others go
        kernel.let_go_run = max(kernel.incarnations.values())
    kernel.supervisor.paused = loaded.paused
    kernel.awaited = loaded.awaited
    kernel.supervisor.arrived = take_in(kernel, loaded)
    return kernel
