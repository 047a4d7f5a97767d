"""What other processes may ask of a runtime: each verb is a method of the handle of its target, or (`fire`) of its
reference.

The table says which targets a verb has, and which arguments; everything else is refused. What a verb does, and when it
is refused, stands where it is defined: with the handles, and the machines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from ..journal.contract import InboxRow
    from ..runtime import Runtime


class Verb(msgspec.Struct, frozen=True):
    """A verb: the method of each kind of target that does it, and the names of its arguments.

    event: what it fires, for the check whether a stopped journal's state allows it ("": what has ended may begin a next
    run, so only the runtime can say). stopped: whether it makes sense to keep it until the next start.
    """

    methods: dict[str, str]  # by kind of target
    arguments: frozenset[str]
    event: str
    stopped: bool = True


def _verb(event: str, *kinds: str, arguments: str, method: str = "", stopped: bool = True) -> Verb:
    return Verb(dict.fromkeys(kinds, method or event), frozenset(arguments.split()), event, stopped)


VERBS: dict[str, Verb] = {
    "cancel": _verb("cancel", "job", "task", arguments="reason force by"),
    "pause": _verb("pause", "job", arguments="reason by"),
    "resume": _verb("", "job", method="resume", arguments="reason by"),
    "pause_worker": _verb("", "worker", method="pause", arguments="reason by", stopped=False),
    "resume_worker": _verb("", "worker", method="resume", arguments="reason by", stopped=False),
    "shut_down_worker": _verb("", "worker", method="shut_down", arguments="reason by deadline", stopped=False),
    "terminate_worker": _verb("", "worker", method="terminate", arguments="reason by", stopped=False),
    "start_worker": _verb("", "worker", method="start", arguments="reason by", stopped=False),
    "retry": _verb("", "job", "task", method="retry", arguments="reason by"),
    "skip": _verb("", "task", method="skip", arguments="reason by"),
    "approve": _verb("approve", "job", "task", arguments="reason by approval"),
    "reject": _verb("reject", "job", "task", arguments="reason by approval"),
    "reset": _verb("reset", "breaker", "task", arguments="reason by"),
    "fire": _verb(
        "", "machine", "job", "task", "worker", "breaker", method="fire", arguments="event reason by metadata facts"
    ),
    "trip": _verb("trip", "breaker", arguments="reason by cooldown"),
}

_COMMANDS = {
    "approve": "approve", "reject": "reject", "skip": "skip", "pause": "pause", "resume": "resume", "cancel": "cancel",
    "cancel_graceful": "cancel", "cancel_force": "cancel --force",
}  # fmt: skip
_BY_KIND = {"task": {"reset": "retry"}, "breaker": {"reset": "breaker reset", "trip": "breaker trip"}}
"""What an operator fires events by: the words of the command line, by event."""


def commands_of(kind: str, events: Iterable[str]) -> list[str]:
    """The commands that an entity takes whose state knows those events, by their words, in order."""
    words = _COMMANDS | _BY_KIND.get(kind, {})
    return sorted({words[event] for event in events if event in words})


class MovedAway(Exception):  # noqa: N818 - it says what happened
    """What a row of the inbox is about lives on another node meanwhile: that one does it."""


async def perform(runtime: Runtime, row: InboxRow) -> None:
    """Do what a row of the inbox asks. Raises what the verb is refused with; LookupError for no such target, MovedAway
    for one that is not to be had here.
    """
    verb = check_row(row)
    target = await target_of(runtime, row.kind, row.target)
    if getattr(target, "elsewhere", False):
        raise MovedAway(row.target)
    if row.verb == "fire" and row.kind != "machine":  # whose handle is its reference
        target = target.ref
    await getattr(target, verb.methods[row.kind])(**row.arguments, request_id=row.request_id)


def check_row(row: InboxRow) -> Verb:
    """The verb of a row of the inbox. Raises ValueError if that kind has none, or it has no such argument."""
    verb = VERBS.get(row.verb)
    if verb is None or row.kind not in verb.methods:
        raise ValueError(f"this runtime knows no command {row.verb!r:.40} for a {row.kind!r:.40}")
    unknown = row.arguments.keys() - verb.arguments
    if unknown:
        raise ValueError(f"{row.verb} takes no {', '.join(sorted(unknown))}; it takes {', '.join(verb.arguments)}")
    return verb


async def target_of(runtime: Runtime, kind: str, name: str) -> Any:  # Any: handles have their verbs in common only
    """The handle of an entity; a task's name has its job's id in front. Raises LookupError."""
    return await _TARGETS[kind](runtime, name)


async def _job(runtime: Runtime, name: str) -> Any:
    return await runtime.job(name)


async def _task(runtime: Runtime, name: str) -> Any:
    job, _, task = name.rpartition("/")  # a child job has its parent's id in front
    return (await runtime.job(job)).task(task)


async def _breaker(runtime: Runtime, name: str) -> Any:
    return await runtime.breaker_of(name)


async def _worker(runtime: Runtime, name: str) -> Any:
    return runtime.former_worker(name)


async def _machine(runtime: Runtime, name: str) -> Any:
    return await runtime.machine_ref(name)


_TARGETS: dict[str, Callable[[Runtime, str], Awaitable[Any]]] = {
    "job": _job,
    "task": _task,
    "breaker": _breaker,
    "worker": _worker,
    "machine": _machine,
}
