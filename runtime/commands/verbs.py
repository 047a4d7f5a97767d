"""The verbs that other processes may use: methods of the target's handle or (`fire`) of its reference.

The table lists the targets and arguments of each verb; everything else is refused. The handles and the machines define
the effect of a verb, and when it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from ...actors.messages import commands as told

if TYPE_CHECKING:
    from ...actors.messages.inputs import Message
    from ..journal.contract import InboxRow


class Verb(msgspec.Struct, frozen=True):
    """A verb: the method of the handles, the kinds of its targets, and the names of its arguments.

    messages: by kind, makes the message to a living target from the arguments; None: the verb uses another way. event:
    the event that it fires, to check whether the state in a stopped journal allows it ("": an ended target may begin a
    next run, so only the runtime knows). stopped: whether the command may wait for the next start. begins_run: whether
    it may begin a job's next run; it then returns the handle of the run that goes on.
    """

    method: str
    messages: dict[str, type[Message] | None]
    arguments: frozenset[str]
    event: str
    stopped: bool = True
    begins_run: bool = False

    def message(self, kind: str, said: dict[str, Any]) -> Message:
        """The message to a living target of that kind."""
        message = self.messages[kind]
        assert message is not None  # noqa: S101 - the other targets take no message
        return message(**said)


def _verb(
    event: str,
    arguments: str,
    *,
    method: str = "",
    stopped: bool = True,
    begins_run: bool = False,
    **messages: type[Message] | None,
) -> Verb:
    return Verb(method or event, messages, frozenset(arguments.split()), event, stopped, begins_run)


VERBS: dict[str, Verb] = {
    "cancel": _verb("cancel", "reason force by", job=told.Cancel, task=told.Cancel),
    "pause": _verb("pause", "reason by", job=told.Pause),
    "resume": _verb("", "reason by", method="resume", begins_run=True, job=told.Resume),
    "pause_worker": _verb("", "reason by", method="pause", stopped=False, worker=told.PauseWorker),
    "resume_worker": _verb("", "reason by", method="resume", stopped=False, worker=told.ResumeWorker),
    "shut_down_worker": _verb("", "reason by deadline", method="shut_down", stopped=False, worker=told.ShutDownWorker),
    "terminate_worker": _verb("", "reason by", method="terminate", stopped=False, worker=told.TerminateWorker),
    "start_worker": _verb("", "reason by", method="start", stopped=False, worker=told.BeginWork),
    "retry": _verb("", "reason by from_step", method="retry", begins_run=True, job=None, task=told.ResetTask),
    "skip": _verb("", "reason by", method="skip", begins_run=True, task=told.SkipTask),
    "approve": _verb("approve", "reason by approval", job=told.Approve, task=told.Approve),
    "reject": _verb("reject", "reason by approval", job=told.Reject, task=told.Reject),
    "reset": _verb("reset", "reason by", breaker=told.ResetBreaker, task=told.ResetTask),
    "send": _verb("", "name value by", method="send", job=told.Send, task=told.Send),
    "fire": _verb(
        "",
        "event reason by metadata facts",
        method="fire",
        machine=None,
        job=None,
        task=None,
        worker=None,
        breaker=None,
    ),
    "trip": _verb("trip", "reason by cooldown", breaker=told.TripBreaker),
}
_BY_METHOD = {(kind, verb.method): verb for verb in VERBS.values() for kind in verb.messages}


def begins_run(kind: str, method: str) -> bool:
    """Whether a verb may begin a job's next run, and returns the handle of the run that goes on."""
    verb = _BY_METHOD.get(("job" if kind == "workstream" else kind, method))
    return verb is not None and verb.begins_run


def verb_of(kind: str, method: str) -> Verb:
    """The verb for a method of the handles of a kind of target."""
    return _BY_METHOD[kind, method]


_COMMANDS = {
    "approve": "approve", "reject": "reject", "skip": "skip", "pause": "pause", "resume": "resume", "cancel": "cancel",
    "cancel_graceful": "cancel", "cancel_force": "cancel --force",
}  # fmt: skip
_BY_KIND = {"task": {"reset": "retry"}, "breaker": {"reset": "breaker reset", "trip": "breaker trip"}}
"""The commands of the command line by which operators fire events, by event."""


def commands_of(kind: str, events: Iterable[str]) -> list[str]:
    """The sorted names of the commands that an entity accepts if its state allows those events."""
    words = _COMMANDS | _BY_KIND.get(kind, {})
    return sorted({words[event] for event in events if event in words})


class MovedAway(Exception):  # noqa: N818 - it says what happened
    """The target of an inbox row has moved to another node, which executes the row."""


def check_row(row: InboxRow) -> Verb:
    """The verb of an inbox row. Raises ValueError if the kind does not have the verb, or the verb not the argument."""
    verb = VERBS.get(row.verb)
    if verb is None or row.kind not in verb.messages:
        raise ValueError(f"this runtime knows no command {row.verb!r:.40} for a {row.kind!r:.40}")
    unknown = row.arguments.keys() - verb.arguments
    if unknown:
        raise ValueError(f"{row.verb} takes no {', '.join(sorted(unknown))}; it takes {', '.join(verb.arguments)}")
    return verb
