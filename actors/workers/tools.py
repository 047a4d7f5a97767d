"""Tools: the settings in force, if several workstreams and the runtime declare the same tool.

| setting | in force |
| --- | --- |
| `max_parallel` | the strictest that a runtime or a living workstream declares, on any node: see `tool_limits.py` |
| `breaker` | the runtime's; else that of the workstream that declared it last |
| `retry`, `timeout` | the workstream's for its own tasks; else the runtime's |

Rules
-----
- The first two apply to all tasks of a tool, so only one value can be in force. If a workstream declares another value,
  one notice reports that at its submission; the workstream is not refused.
- The last workstream decides the breaker's settings, not the first: breakers outlive jobs and restarts, and a changed
  setting should take effect. Settings that no workstream may overrule belong to the runtime.
- A breaker is created once a workstream is submitted that declares the tool or has a task of it, if the runtime
  declares the tool, or when a step uses it. It stays, unless there are more than `BREAKERS_KEPT`: then breakers are
  released that are closed, have counted nothing, and whose tools no living job uses or declares. If nodes share tools,
  a breaker with unsent news stays; after a release, a message about an unhealthy tool creates its breaker again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ...machines import BreakerState
from ...machines.keywords import number_of
from ..kernel.publishing import birth
from ..kernel.transaction import EntityDropped
from ..messages.inputs import ToolHeard
from ..records.entities import BreakerRecord
from ..spec.limits import breaker_of
from ..spec.model import Breaker, Tool
from ..times import seconds
from .breaker import BreakerActor
from .tool_limits import RUNTIME

if TYPE_CHECKING:
    from ..kernel.contract import Job
    from .workforce import Workforce

BREAKERS_KEPT = 1_000
"""Number of breakers above which unused ones are released."""


def provide(workforce: Workforce, job: Job, *, again: bool = False) -> None:
    """Create a breaker for each tool of the job, and apply the workstream's settings if permitted.

    again: the job was submitted before, on another node; its settings do not change an existing breaker.
    """
    job_id, declares = job.record.id, job.spec.tools
    names = dict.fromkeys([*(task.tool for task in job.spec.tasks if task.tool is not None), *declares])
    limits = {name: workforce.tool_limits.declared(name) for name in declares}
    workforce.tool_limits.hear(job)
    for name in names:
        declared = declares.get(name)
        before = workforce.breakers.get(name)
        breaker = before or _new(workforce, name, declared)
        workforce.tool_limits.settle(name)
        if declared is None or (again and before is not None):
            continue
        over = workforce.kernel.tools.get(name)
        if declared.breaker is not None:
            _say(breaker, declared.breaker, job_id, over is not None and over.breaker is not None)
        wanted, limit = declared.max_parallel, limits[name]
        if wanted is not None and limit is not None and limit != wanted:
            said = f"sets max_parallel = {wanted} for tool {name!r}, but {limit} was in force"
            end = f"the strictest limit holds, which is {workforce.tool_limits.of(name)}"
            _tell(breaker, job_id, f"{said}: {end}", setting="max_parallel")


def settle(workforce: Workforce) -> None:
    """Create the breakers of the runtime's own tools, and apply the runtime's settings."""
    tools = workforce.kernel.tools
    for name, tool in tools.items():
        breaker = workforce.breakers.get(name) or _new(workforce, name, tool)
        if tool.breaker is not None:
            _set(breaker, tool.breaker, RUNTIME)
    for name in workforce.breakers:
        workforce.tool_limits.settle(name)
    for name, breaker in workforce.breakers.items():
        mine = tools.get(name)
        if breaker.record.said_by == RUNTIME and (mine is None or mine.breaker is None):
            _set(breaker, Breaker(), None)  # the runtime does not declare settings any more


def heard(workforce: Workforce, message: ToolHeard) -> None:
    """Apply the agreed state of a tool, or note that another node uses it (generation 0).

    A missing breaker is created, so that later users on this node begin with that state.
    """
    breaker = workforce.breakers.get(message.tool)
    if breaker is None and (message.state != BreakerState.CLOSED or not message.generation):
        breaker = _new(workforce, message.tool, workforce.kernel.tools.get(message.tool))
    if breaker is not None:
        breaker.receive(message)


def breaker_for_step(workforce: Workforce, name: str) -> BreakerActor:
    """The breaker of a tool that a step uses: made with the first step, if no workstream declares or uses the tool."""
    breaker = workforce.breakers.get(name)
    if breaker is None:
        breaker = _new(workforce, name, None)
        workforce.tool_limits.settle(name)
    return breaker


def _new(workforce: Workforce, name: str, said: Tool | None) -> BreakerActor:
    kernel = workforce.kernel
    lifecycle = kernel.lifecycles.of("breaker", breaker_of(said).lifecycle)
    record = BreakerRecord(
        key=kernel.number(), id=kernel.placed(name), name=name, state=BreakerState.CLOSED, created_at=kernel.at,
        updated_at=kernel.at, published=birth(kernel.lifecycles, "breaker", lifecycle),
    )  # fmt: skip
    made = workforce.breakers[name] = BreakerActor(workforce, record)
    made.born()
    if len(workforce.breakers) > BREAKERS_KEPT:
        _release_unused(workforce, name)
    return made


def _release_unused(workforce: Workforce, but: str) -> None:
    """Release the oldest breakers that are unused and have counted nothing, up to half of `BREAKERS_KEPT`."""
    kernel = workforce.kernel
    used = {task.tool for job in kernel.jobs.values() for task in job.spec.tasks} | {but, *kernel.tools}
    used |= {name for job in kernel.jobs.values() for name in job.spec.tools}
    idle = [one for name, one in workforce.breakers.items() if name not in used and one.says_nothing and not one.news]
    for breaker in idle[: BREAKERS_KEPT // 2]:
        del workforce.breakers[breaker.record.name]
        workforce.scheduler.forget_tool(breaker.record.name)
        workforce.tool_limits.forget(breaker.record.name)
        kernel.forget(breaker)
        kernel.effect(EntityDropped(breaker.record.id))


def _say(known: BreakerActor, said: Breaker, job_id: str, overruled: bool) -> None:
    """Apply a workstream's settings of a breaker, unless the runtime's overrule them; report a difference."""
    record = known.record
    differs = _with(record, said, record.said_by) != record
    if differs and record.said_by is not None:
        end = "the runtime's settings hold" if overruled else "the settings that were submitted last apply"
        who = "the runtime" if record.said_by == RUNTIME else f"job {record.said_by}"
        text = f"sets the breaker of tool {record.name!r} to {_words(said)}, but {who} has set it otherwise: {end}"
        _tell(known, job_id, text, setting="breaker")
    if not overruled:
        _set(known, said, job_id)


def _set(known: BreakerActor, said: Breaker, by: str | None) -> None:
    wanted = _with(known.record, said, by)
    if wanted != known.record:
        known.change(
            failure_threshold=wanted.failure_threshold, success_threshold=wanted.success_threshold,
            cooldown=wanted.cooldown, ignore=wanted.ignore, said_by=by,
        )  # fmt: skip


def _with(record: BreakerRecord, said: Breaker, by: str | None) -> BreakerRecord:
    return replace(
        record, failure_threshold=said.failure_threshold, success_threshold=said.success_threshold,
        cooldown=seconds(said.cooldown), ignore=list(said.ignore), said_by=by,
    )  # fmt: skip


def _words(said: Breaker) -> str:
    return (
        f"{number_of(said.failure_threshold, 'failure')}, a cooldown of {seconds(said.cooldown):g} s and "
        f"{number_of(said.success_threshold, 'success', 'successes')}"
        + (f", ignoring {', '.join(said.ignore)}" if said.ignore else "")
    )


def _tell(known: BreakerActor, job_id: str, text: str, *, setting: str) -> None:
    known.kernel.notice("tool_settings_differ", "warning", f"job {job_id} {text}", known, job=job_id, setting=setting)
