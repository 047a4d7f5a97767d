"""Actions on jobs, tasks, workers, breakers and machines over HTTP: a table.

Rules
-----
- A row is a path for POST: the action on a kind of entity, its fields beside reason, name and key, and its scope. The
  action is a verb of `runtime/commands/verbs.py`, which is a method of the handle.
- The answer is what the runtime keeps of the command under its key, so the same request gets the same answer, also
  after a restart. A request without a key gets one.
- An event instead of an action (`fire`) needs the scope of the equal action, and is in no list of actions.
- With a token, the action has the token's name.
- A refused action has changed nothing. The refusal has the entity's state, and the actions that it allows.
- A message (`send`) has no reason. A webhook posts one to a path of its own (`messages.py`).
- An answer is awaited for a limited time; an action that is not answered by then may still take effect. The same
  request sent again returns its result.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec

from ....actors.messages.errors import FireFailed, MachineNotFound, TooManyMessages
from ....actors.records.entities import Acknowledged
from ....actors.records.transition import Transitioned
from ....actors.spec.validate import SpecificationError
from ....actors.times import Duration
from ....machines import InvalidTransitionError
from ...commands.idempotency import RequestIdReused, made_key
from ...commands.verbs import VERBS
from ...errors import JobExists, JournalError, RuntimeClosed
from ...handles.base import LARGEST_MESSAGE, MessageTooLarge
from ...handles.references import verb_for_event
from ...handles.targets import target_of
from ..http.access import ANY, lacking
from ..http.problems import FoundWrong, Problem, problem_of, unfit
from ..read.allowed import RemoteJobFacts, actions_of, read_remote_facts
from .idempotency import key_of

if TYPE_CHECKING:
    from ...services import RuntimeServices
    from ..http.access import Caller
    from ..http.context import Board

WITHIN = 30.0
"""Seconds for which the answer to an action is awaited."""


# -- request bodies ---------------------------------------------------------------------------------------------------


class Signed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The author of an action, and the request's key. The same key is the same command, done once.

    A refused command with a key may be sent again.

    by: with a token it is the token's name; otherwise "operator", unless given. request_id: 1 to 200 printable
    characters; the header `Idempotency-Key` may be used instead.
    """

    by: str | None = None
    request_id: str | None = None


class Say(Signed, frozen=True, kw_only=True):
    """The reason for an action, its author, and the request's key; as `Signed`."""

    reason: str | None = None


class Cancel(Say, frozen=True, kw_only=True):
    """Cancel. force: at once, also if it is being cancelled already."""

    force: bool = False


class Decide(Say, frozen=True, kw_only=True):
    """Approve or reject. approval: which one a task's running body asks for, if there are several."""

    approval: str | None = None


class Retry(Say, frozen=True, kw_only=True):
    """Run a job again. task: run only this task and its dependents again, or, in a living job, a parked task.

    from_step: the label of a step of that task ("ask_model#3"): it and the steps after it run again.
    """

    task: str | None = None
    from_step: str | None = None


class RetryTask(Say, frozen=True, kw_only=True):
    """Run a task again. from_step: the label of one of its steps ("ask_model#3"): it and those after it run again."""

    from_step: str | None = None


class Skip(Say, frozen=True, kw_only=True):
    """Skip a task."""

    task: str


LARGEST_BODY = 8 * LARGEST_MESSAGE
"""Bytes of the largest body of a request that sends a message. JSON with spaces, and with escapes in place of
characters ("\\u00e9"), is up to seven times as long as the JSON that counts.
"""


class Send(Signed, frozen=True, kw_only=True):
    """Send a message, which a body receives by `name`. value: any JSON, 1,048,576 bytes at most; null unless
    given, as `job.send(name)` sends.
    """

    name: str
    value: Any = None


class ShutDown(Say, frozen=True, kw_only=True):
    """Let a worker finish its tasks. deadline: seconds, or a duration as "90s", after which they are stopped."""

    deadline: Duration | None = None


class Trip(Say, frozen=True, kw_only=True):
    """Open a breaker. cooldown: how long, in seconds or as a duration like "90s"; by default its own."""

    cooldown: Duration | None = None


class Fire(Say, frozen=True, kw_only=True):
    """Fire an event at a machine. metadata: facts that are kept with the transition."""

    event: str
    metadata: dict[str, Any] | None = None


class FireEvent(Say, frozen=True, kw_only=True):
    """Fire an event that people may fire. facts: further fields of its verb (`approval`, `deadline`, `cooldown`)."""

    event: str
    facts: dict[str, Any] | None = None


# -- the table ---------------------------------------------------------------------------------------------------------


class Action(NamedTuple):
    """A path for POST. verb: its row in `VERBS`."""

    kind: str
    word: str
    verb: str
    takes: type[Signed] = Say
    scope: str = "operate"

    @property
    def method(self) -> str:
        """The verb of the handle that executes the action."""
        return VERBS[self.verb].method


ACTIONS = (
    Action("job", "cancel", "cancel", Cancel),
    Action("job", "pause", "pause"),
    Action("job", "resume", "resume"),
    Action("job", "retry", "retry", Retry),
    Action("job", "skip", "skip", Skip),  # skips one of its tasks
    Action("job", "send", "send", Send),
    Action("job", "approve", "approve", scope="approve"),
    Action("job", "reject", "reject", scope="approve"),
    Action("task", "cancel", "cancel", Cancel),
    Action("task", "send", "send", Send),
    Action("task", "approve", "approve", Decide, scope="approve"),
    Action("task", "reject", "reject", Decide, scope="approve"),
    Action("task", "retry", "retry", RetryTask),
    Action("task", "skip", "skip"),
    Action("task", "reset", "reset"),
    Action("worker", "start", "start_worker"),
    Action("worker", "pause", "pause_worker"),
    Action("worker", "resume", "resume_worker"),
    Action("worker", "shut_down", "shut_down_worker", ShutDown),
    Action("worker", "terminate", "terminate_worker"),
    Action("breaker", "reset", "reset"),
    Action("breaker", "trip", "trip", Trip),
    Action("machine", "fire", "fire", Fire),
)
TABLE: Mapping[tuple[str, str], Action] = {(one.kind, one.word): one for one in ACTIONS}
FIRED = tuple(Action(kind, "fire", "fire", FireEvent, scope=ANY) for kind in ("job", "task", "worker", "breaker"))
"""Events instead of actions: each needs the scope of the equal action."""


class Done(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of an action: the entity after the command.

    state, status: in the words of its lifecycle (document 002 calls it status); phase: the runtime's own word.
    workstream: the state of a job's workstream. transition: of a machine. verb: for an event, the handle's method that
    it equals; none if only the node that runs the entity knows its lifecycle.
    """

    kind: str
    id: str
    state: str
    status: str
    phase: str
    workstream: str | None = None
    transition: Transitioned | None = None
    verb: str | None = None


# -- performing --------------------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """The target of an action. name: for a task its job's id; `task` is the task's name."""

    name: str
    task: str | None = None


async def perform(
    board: Board, caller: Caller, action: Action, target: Target, said: Signed, *, keys: Sequence[str] = ()
) -> Done:
    """Perform an action; returns when it has taken effect, durably. keys: the values of `Idempotency-Key`.

    Raises Problem; then nothing has changed, unless the problem says so.
    """
    services = board.services
    arguments = _arguments(action, said, caller)
    if action.kind == "job" and "task" in arguments:
        action, target = TABLE["task", action.word], Target(target.name, arguments.pop("task"))
    given = key_of(keys, said.request_id)
    key = made_key() if given is None else given
    writable(services)
    with board.on_their_way.of(services, key):
        with anyio.move_on_after(WITHIN):
            verb = await _do(services, caller, action, target, {**arguments, "request_id": key})
            return msgspec.structs.replace(await done_of(services, key), verb=verb)
    text = (
        f"no answer within {WITHIN:g} s; the command may still take effect: send it again with the request_id {key!r}"
    )
    raise Problem(503, "unanswered", text, headers={"Retry-After": "5"})


def writable(services: RuntimeServices) -> None:
    """Raise Problem while the journal cannot be written: then no command is accepted."""
    health = services.health
    if not health.ok:
        text = f"the journal cannot be written now, so no command is accepted: {health.reason}"
        raise Problem(503, "journal-unwritable", text, headers={"Retry-After": "5"})


def accepting(services: RuntimeServices) -> None:
    """Raise Problem if no new job is accepted: the runtime is stopping, or cannot write."""
    writable(services)
    if services.draining:
        raise Problem(503, "draining", "the runtime is stopping, and accepts no new job", headers={"Retry-After": "30"})


def _arguments(action: Action, said: Signed, caller: Caller) -> dict[str, Any]:
    """Return the arguments of the action's method, without the key."""
    given = {name: value for name in said.__struct_fields__ if (value := getattr(said, name)) is not None}
    given.pop("request_id", None)
    given["by"] = caller.by(said.by)
    if action.kind == "machine":  # a machine keeps the name in a transition's metadata
        given["metadata"] = {**given.get("metadata", {}), "by": given.pop("by")}
    return given


async def _do(
    services: RuntimeServices, caller: Caller, action: Action, target: Target, arguments: dict[str, Any]
) -> str | None:
    """Run the action. Returns the verb that an event equals."""
    verb = None
    with trouble():
        if target.task is None:
            handle = await target_of(services, action.kind, target.name)
        else:
            handle = (await target_of(services, "job", target.name)).task(target.task)
        try:
            if action in FIRED:
                handle = handle.ref
                verb = await verb_for_event(handle, arguments["event"])
                _check_scope(caller, action.kind, verb)
            await getattr(handle, action.method)(**arguments)
        except InvalidTransitionError as refusal:
            remote = (
                None if target.task is None and action.kind != "job" else await read_remote_facts(services, target.name)
            )
            raise conflict(services, handle, refusal, remote) from None
    return verb


def _check_scope(caller: Caller, kind: str, verb: str | None) -> None:
    """Raise Problem if the caller may not do what an event does."""
    words = [one for one in ACTIONS if one.kind == kind and verb in {None, one.word}]  # None: any of them is possible
    for needed in {one.scope for one in words}:
        if needed not in caller.scopes:
            raise Problem(403, "forbidden", lacking(needed, caller))


@contextmanager
def trouble() -> Generator[None]:
    """Turn the errors of a verb into Problems."""
    try:
        yield
    except (Problem, InvalidTransitionError, SpecificationError, JobExists, RequestIdReused, RuntimeClosed):
        raise
    except (MachineNotFound, FireFailed) as refusal:
        raise problem_of(refusal) from None
    except TooManyMessages as full:
        raise Problem(429, "too-many-messages", str(full), headers={"Retry-After": "5"}) from None
    except MessageTooLarge as large:
        raise Problem(413, "too-large", str(large)) from None
    except LookupError as missing:
        raise Problem(404, "not-found", str(missing.args[0])) from None
    except JournalError as error:
        raise Problem(503, "journal-unwritable", str(error), headers={"Retry-After": "5"}) from None
    except (ValueError, TypeError) as error:
        raise unfit([FoundWrong("", str(error))]) from None


def conflict(
    services: RuntimeServices, handle: Any, refusal: InvalidTransitionError, remote: RemoteJobFacts | None = None
) -> Problem:  # Any: a handle of any kind
    """Make the problem of a refused action, with the allowed actions."""
    problem = problem_of(refusal)
    problem.more["commands"] = actions_of(services, handle.record, remote)
    return problem


async def done_of(services: RuntimeServices, key: str) -> Done:
    """Return what the runtime keeps of a command that has taken effect."""
    encoded = await services.kept_of(key)
    if encoded is None:
        raise RuntimeClosed(f"the result of the command with the key {key!r:.80} is no longer known")
    kept = msgspec.json.decode(encoded, type=Acknowledged)
    state, name = kept.shown or kept.state, kept.id
    if kept.kind in {"worker", "breaker"}:
        name = services.called(name.partition("#")[0] if kept.kind == "worker" else name)
    return Done(
        kind=kept.kind, id=name, state=state, status=state, phase=kept.state,
        workstream=kept.workstream or None, transition=kept.transition,
    )  # fmt: skip
