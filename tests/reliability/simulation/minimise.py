"""Makes a failing plan smaller: it drops parts as long as the finding stays."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from callboard.actors.spec.model import Task, Workstream

from .driver import carry_out
from .plans import Plan

MOST = 400
"""Runs that are spent on it."""


def smaller(plan: Plan, kinds: set[str]) -> Plan:
    """The smallest plan found, by dropping one thing after the other, that shows a finding of one of the kinds."""
    runs = 0
    again = True
    while again and runs < MOST:
        again = False
        for candidate in _less(plan):
            runs += 1
            if carry_out(candidate).kinds & kinds:
                plan, again = candidate, True
                break
            if runs >= MOST:
                break
    return plan


def _less(plan: Plan) -> Iterator[Plan]:
    for index in reversed(range(len(plan.orders))):
        if len(plan.orders) > 1:
            yield plan.without_order(index)
    for index in range(len(plan.moves)):
        yield plan.without_move(index)
    for index, order in enumerate(plan.orders):
        for task in order.spec.tasks:
            if len(order.spec.tasks) > 1:
                yield plan.with_spec(index, _without(order.spec, task.name))
        for task in order.spec.tasks:
            plainer = Task(task.name, run=task.run, command=task.command, engine=task.engine)
            plainer = replace(plainer, depends_on=task.depends_on, after=task.after)
            if plainer != task:
                tasks = [plainer if one is task else one for one in order.spec.tasks]
                yield plan.with_spec(index, replace(order.spec, tasks=tasks))


def _without(spec: Workstream, name: str) -> Workstream:
    tasks = [
        replace(
            task,
            depends_on=[other for other in task.depends_on if other != name],
            after=[other for other in task.after if other != name],
        )
        for task in spec.tasks
        if task.name != name
    ]
    return replace(spec, tasks=tasks)
