"""`callboard pause JOB` and its like: the commands that say one thing to a job or task of a runtime, or of a journal.

What they may be said to, and what they do, stands in `control/verbs.py` and where it points; here are their words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from .acting import TIMEOUT, Act, AsJson, By, MaybeReason, RequestId, Target, Timeout, address, find, login
from .options import JOURNAL, Journal, MaybeTask
from .trouble import Trouble

ApprovalName = Annotated[
    str | None, typer.Option("--approval", metavar="NAME", help="Of the running body of the task: what it asks for.")
]


def _control(verb: str, text: str, reason: str | None) -> Callable[..., None]:
    """The command of a verb: `text` is its help, `reason` what is kept where none is given."""

    def command(
        target: Target,
        task: MaybeTask = None,
        *,
        journal: Journal = JOURNAL,
        reason: MaybeReason = reason,
        by: By = None,
        request_id: RequestId = None,
        timeout: Timeout = TIMEOUT,
        as_json: AsJson = False,
    ) -> None:
        act = Act(journal, verb, request_id=request_id, timeout=timeout, as_json=as_json)
        say(act, target, task, reason=reason, by=by)

    command.__name__ = verb
    command.__doc__ = text
    return command


def _decision(verb: str, text: str) -> Callable[..., None]:
    """The command of a decision about what is held, or what a running body asks for."""

    def command(
        target: Target,
        task: MaybeTask = None,
        *,
        approval: ApprovalName = None,
        journal: Journal = JOURNAL,
        reason: MaybeReason = None,
        by: By = None,
        request_id: RequestId = None,
        timeout: Timeout = TIMEOUT,
        as_json: AsJson = False,
    ) -> None:
        act = Act(journal, verb, request_id=request_id, timeout=timeout, as_json=as_json)
        say(act, target, task, reason=reason, by=by, **({} if approval is None else {"approval": approval}))

    command.__name__ = verb
    command.__doc__ = text
    return command


def say(act: Act, target: str, task: str | None, *, reason: str | None, by: str | None, **more: str) -> None:
    """Say a verb to a job or task. Raises Trouble, and typer's Exit."""
    from ..control.verbs import VERBS  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415

    with reading(act.journal) as reader:
        named = find(reader, target, task)
    verb = VERBS[act.verb]
    if named.kind not in verb.methods:
        kinds = " or a ".join(verb.methods)
        raise Trouble(f"{act.verb} takes a {kinds}, and {named.id} is a {named.kind}.")
    arguments = {"reason": reason, "by": by if by is not None else login(), **more}
    act.on(named.kind, address(named), f"{named.kind} {named.id}", arguments, told=reason or "")


CONTROLS = (
    _decision("approve", "Approve what is held: a task, or the workstream of a job; or what a running body asks for."),
    _decision("reject", "Reject what is held, which cancels it; or what a running body asks for."),
    _control("retry", "Run again what has ended: a job, or a task with all that waits for it.", "retried by the user"),
    _control("skip", "Do without a task: its dependents go on as if it had completed.", "skipped by an operator"),
    _control("pause", "Start nothing more of a job until `resume`; what runs goes on.", "paused by the user"),
)
