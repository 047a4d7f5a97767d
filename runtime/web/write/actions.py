"""What is done to jobs, tasks, workers, breakers and machines over HTTP: a table.

Rules
-----
- A row is a path that is posted to: which word of which kind of entity, what it takes beside why, by whom and its key,
  and the scope that it needs. What it does is the verb of `runtime/commands/verbs.py`, that is a method of the handle.
- The answer is what is kept of the command under its key, so it is the same for the same request, also after a restart.
  A request without a key is given one.
- An event in place of the word that it is (`fire`) needs the scope of that word, and is in no list of words.
- By whom something is done is the caller's own name, where they came with a token.
- A refusal has changed nothing. It says in which state the entity is, and which words it takes there.
- An answer is waited for so long; what is not answered by then may take effect yet, and the same request again tells.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio
import msgspec

from ....actors.machines.kind import FireFailed, MachineNotFound
from ....actors.records.entities import Acknowledged
from ....actors.records.transition import Transitioned
from ....actors.spec.times import Duration
from ....actors.spec.validate import SpecificationError
from ....machines import InvalidTransitionError
from ...commands.idempotency import RequestIdReused, made_key
from ...commands.verbs import VERBS, target_of
from ...handles.outcomes import JobExists, RuntimeClosed
from ...journal.contract import JournalError
from ..http.access import ANY, lacking
from ..http.problems import FoundWrong, Problem, problem_of, unfit
from ..read.allowed import Elsewhere, actions_of, elsewhere
from .idempotency import key_of

if TYPE_CHECKING:
    from ...services import RuntimeServices
    from ..http.access import Caller
    from ..http.context import Board

WITHIN = 30.0
"""Seconds that the answer to an action is waited for."""


# -- what is posted ----------------------------------------------------------------------------------------------------


class Say(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Why something is done, by whom, and the key of the request: the same again is the same command, done once.

    What was refused under a key is judged anew.

    by: with a token it is the token's name; without one "operator", unless given. request_id: 1 to 200 printable
    characters; the header `Idempotency-Key` may be used instead.
    """

    reason: str | None = None
    by: str | None = None
    request_id: str | None = None


class Cancel(Say, frozen=True, kw_only=True):
    """Cancel. force: at once, also where it is being cancelled already."""

    force: bool = False


class Decide(Say, frozen=True, kw_only=True):
    """Approve or reject. approval: of a task, the name of what its running body asks for, if that is several."""

    approval: str | None = None


class Retry(Say, frozen=True, kw_only=True):
    """Run a job again. task: run this one anew, with all that waits for it; or, in a living job, where it is parked."""

    task: str | None = None


class Skip(Say, frozen=True, kw_only=True):
    """Do without a task."""

    task: str


class ShutDown(Say, frozen=True, kw_only=True):
    """Let a worker finish what it runs. deadline: seconds, or a duration as "90s", after which that is stopped."""

    deadline: Duration | None = None


class Trip(Say, frozen=True, kw_only=True):
    """Open a breaker. cooldown: seconds, or a duration as "90s", for which it stays so; its own unless given."""

    cooldown: Duration | None = None


class Fire(Say, frozen=True, kw_only=True):
    """Fire an event at a machine. metadata: what is kept with the transition."""

    event: str
    metadata: dict[str, Any] | None = None


class FireEvent(Say, frozen=True, kw_only=True):
    """Fire an event that people may fire. facts: what else its verb takes (`approval`, `deadline`, `cooldown`)."""

    event: str
    facts: dict[str, Any] | None = None


# -- the table ---------------------------------------------------------------------------------------------------------


class Action(NamedTuple):
    """A path that is posted to. verb: in `VERBS`."""

    kind: str
    word: str
    verb: str
    takes: type[Say] = Say
    scope: str = "operate"

    @property
    def method(self) -> str:
        """That of the handle which does it."""
        return VERBS[self.verb].method


ACTIONS = (
    Action("job", "cancel", "cancel", Cancel),
    Action("job", "pause", "pause"),
    Action("job", "resume", "resume"),
    Action("job", "retry", "retry", Retry),
    Action("job", "skip", "skip", Skip),  # of one of its tasks
    Action("job", "approve", "approve", scope="approve"),
    Action("job", "reject", "reject", scope="approve"),
    Action("task", "cancel", "cancel", Cancel),
    Action("task", "approve", "approve", Decide, scope="approve"),
    Action("task", "reject", "reject", Decide, scope="approve"),
    Action("task", "retry", "retry"),
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
"""An event in place of the word that it is: what it needs is the scope of that one."""


class Done(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What came of an action: the entity as the command left it.

    state, status: in the words of its lifecycle (document 002 calls it status); phase: the runtime's own word.
    workstream: the state of a job's workstream. transition: what a machine did. verb: of an event in place of a word,
    the method of the handle that it asked for; none where only the node that runs it knows its lifecycle.
    """

    kind: str
    id: str
    state: str
    status: str
    phase: str
    workstream: str | None = None
    transition: Transitioned | None = None
    verb: str | None = None


# -- doing it ----------------------------------------------------------------------------------------------------------


class Target(NamedTuple):
    """What an action is done to. name: of a task its job's id, and `task` is its own."""

    name: str
    task: str | None = None


async def perform(
    board: Board, caller: Caller, action: Action, target: Target, said: Say, *, keys: Sequence[str] = ()
) -> Done:
    """Do an action; returns when it has taken effect, durably. keys: the values of `Idempotency-Key`.

    Raises Problem, and nothing has changed then, unless that says so.
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
    text = f"this was not done within {WITHIN:g} s, and may be yet: send the same again with the request_id {key!r}"
    raise Problem(503, "unanswered", text, headers={"Retry-After": "5"})


def writable(services: RuntimeServices) -> None:
    """Raises Problem while the journal cannot be written: nothing new is taken then."""
    health = services.health
    if not health.ok:
        text = f"the journal cannot be written now, so nothing new is taken: {health.reason}"
        raise Problem(503, "journal-unwritable", text, headers={"Retry-After": "5"})


def accepting(services: RuntimeServices) -> None:
    """Raises Problem where no new job is taken: the journal cannot be written, or the runtime is about to end."""
    writable(services)
    if services.draining:
        raise Problem(503, "draining", "the runtime is stopping, and takes nothing new", headers={"Retry-After": "30"})


def _arguments(action: Action, said: Say, caller: Caller) -> dict[str, Any]:
    """What its method is given, but for the key."""
    given = {name: value for name in said.__struct_fields__ if (value := getattr(said, name)) is not None}
    given.pop("request_id", None)
    given["by"] = caller.by(said.by)
    if action.kind == "machine":  # which keeps with each transition whatever it is told
        given["metadata"] = {**given.get("metadata", {}), "by": given.pop("by")}
    return given


async def _do(
    services: RuntimeServices, caller: Caller, action: Action, target: Target, arguments: dict[str, Any]
) -> str | None:
    """Returns the verb that an event in place of a word asked for."""
    verb = None
    with trouble():
        if target.task is None:
            handle = await target_of(services, action.kind, target.name)
        else:
            handle = (await target_of(services, "job", target.name)).task(target.task)
        try:
            if action in FIRED:
                handle = handle.ref
                verb = await handle.verb_of(arguments["event"])
                _check_scope(caller, action.kind, verb)
            await getattr(handle, action.method)(**arguments)
        except InvalidTransitionError as refusal:
            away = None if target.task is None and action.kind != "job" else await elsewhere(services, target.name)
            raise conflict(services, handle, refusal, away) from None
    return verb


def _check_scope(caller: Caller, kind: str, verb: str | None) -> None:
    """Raises Problem where who asks may not do what an event is."""
    words = [one for one in ACTIONS if one.kind == kind and verb in {None, one.word}]  # None: it may be any of them
    for needed in {one.scope for one in words}:
        if needed not in caller.scopes:
            raise Problem(403, "forbidden", lacking(needed, caller))


@contextmanager
def trouble() -> Generator[None]:
    """Raises the Problem of what a verb raises."""
    try:
        yield
    except (Problem, InvalidTransitionError, SpecificationError, JobExists, RequestIdReused, RuntimeClosed):
        raise
    except (MachineNotFound, FireFailed) as refusal:
        raise problem_of(refusal) from None
    except LookupError as missing:
        raise Problem(404, "not-found", str(missing.args[0])) from None
    except JournalError as error:
        raise Problem(503, "journal-unwritable", str(error), headers={"Retry-After": "5"}) from None
    except (ValueError, TypeError) as error:
        raise unfit([FoundWrong("", str(error))]) from None


def conflict(
    services: RuntimeServices, handle: Any, refusal: InvalidTransitionError, away: Elsewhere | None = None
) -> Problem:  # Any: of any kind
    """What the state of an entity does not allow, with what it takes."""
    problem = problem_of(refusal)
    problem.more["commands"] = actions_of(services, handle.record, away)
    return problem


async def done_of(services: RuntimeServices, key: str) -> Done:
    """What is kept under the key of a command that has taken effect."""
    encoded = await services.kept_of(key)
    if encoded is None:
        raise RuntimeClosed(f"what came of the command with the key {key!r:.80} is not known any more")
    kept = msgspec.json.decode(encoded, type=Acknowledged)
    state, name = kept.shown or kept.state, kept.id
    if kept.kind in {"worker", "breaker"}:
        name = services.called(name.partition("#")[0] if kept.kind == "worker" else name)
    return Done(
        kind=kept.kind, id=name, state=state, status=state, phase=kept.state,
        workstream=kept.workstream or None, transition=kept.transition,
    )  # fmt: skip
