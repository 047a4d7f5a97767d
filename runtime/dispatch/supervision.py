"""How users' actors start, fail and restart. Their ends are in runtime/dispatch/endings.py.

The strategy itself is pure: actors/users/strategy.py.

Rules
- A failed actor handles no message until the supervision has decided; it keeps its mailbox.
- A restart ends all affected actors, the last started first, waits for the delay, and builds them again in order of
  start. Children of a restarted actor end: the actor that built them builds them again.
- An actor's failure may be escalated to its parent, and from there to the parent's parent. At the root the actor is
  stopped. The host application never ends by it.
- A notice reports each failure and its consequence: runtime/dispatch/actor_failures.py.
- A child that was spawned inside a receive is unborn until that receive has succeeded: it takes mail, and does not run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ...actors.machines.kind import MachineActor
from ...actors.messages.notices import Severity
from ...actors.times import number, seconds
from ...actors.user_code import called, is_a, message_of, plain, plain_text, raised_by_user, shown
from ...actors.users.actor import Actor, Context
from ...actors.users.errors import ActorStopped, ChildFailed, NameTaken, RestartLimitReached
from ...actors.users.ref import BUSY, NOTHING, Cell, Spec
from ...actors.users.signatures import check_methods
from ...actors.users.strategy import Directive, Restart, RestartCount, Strategy, Supervision
from ...machines import Machine
from .actor_failures import ActorTrouble, Failures
from .endings import BUILT, CHILD, START, Endings
from .mailbox import Mailboxes, details_of

if TYPE_CHECKING:
    from .call_queue import CallQueue
    from .cell_host import CellHost
    from .coroutine_receives import CoroutineReceives
    from .effects import Effects
    from .receive import Receives

__all__ = ["Supervisor"]


SPECS_KEPT = 1_000
"""The number of actor classes whose settings are cached."""


class Group(Struct, gc=False, eq=False):
    """The actors that restart together, in order of start."""

    members: list[Cell]
    left: int  # how many have not ended yet; the last started end first
    delay: float
    began: Cell  # the actor that failed, or a permanent one that stopped itself
    failed: bool


class Supervisor:
    """Starts and restarts the actors of one dispatcher."""

    def __init__(
        self,
        supervision: Supervision,
        host: CellHost,
        *,
        calls: CallQueue,
        mailboxes: Mailboxes,
        effects: Effects,
        receives: Receives,
        coroutines: CoroutineReceives,
        failures: Failures,
        report: Callable[[ActorTrouble], None],
    ) -> None:
        self._host = host
        self._now = host.now
        self._calls = calls
        self._soon = calls.soon
        self._mailboxes = mailboxes
        self._effects = effects
        self._receives = receives
        self._report = report
        self._specs: dict[tuple[Any, ...], Spec] = {}
        self._fit: dict[int, type[Actor]] = {}  # classes whose methods can be called
        self._number = 0
        spec = Spec(None, Restart.TEMPORARY, supervision, 0, 0, has_started=False, has_stopped=False)
        self.root = Cell(host, None, BUSY, None, None, 0, None, spec, None, "root", None)
        details_of(self.root).children = {}
        self.failures = failures
        self.endings = Endings(
            self.root, host, calls=calls, mailboxes=mailboxes, receives=receives, coroutines=coroutines,
            failures=failures, report=report,
        )  # fmt: skip

    # -- beginning -------------------------------------------------------------------------------------------------

    def spawn(
        self,
        parent: Cell,
        actor: type[Actor] | Callable[[], Actor] | Actor,
        *,
        name: str | None,
        mailbox: int,
        restart: Restart | str,
        supervision: Supervision | None,
        stop_timeout: float,
    ) -> Cell:
        """Build an actor and give it a cell among the children of `parent`."""
        if self._calls.closed or parent.spec is None:
            who = "the dispatcher is closed" if self._calls.closed else f"{parent.name} has stopped"
            raise ActorStopped(f"cannot spawn {shown(actor)}: {who}") from self.failures.of(parent)
        details = details_of(parent)
        children = details.children
        if children is None:
            children = details.children = {}
        if name is not None:
            name = plain_text(name, "the name of an actor")
        if name in children:
            msg = f"cannot spawn {shown(actor)} as {name!r}: {children[name]!r} has that name"
            raise NameTaken(msg)
        built, spec = self._build_first(actor, mailbox, restart, supervision, stop_timeout)
        self._number = number = self._number + 1
        key: int | str = number if name is None else name
        cell = Cell(self._host, built, NOTHING, None, None, mailbox - 1, None, spec, parent, key, None)
        cell.ctx = Context(cell, 0)
        children[key] = cell
        if self._host.current is not None:
            # Unborn until the receive that made it has succeeded: it takes mail, and is not queued.
            cell.first = BUSY
            self._effects.stage(self._begin, cell)
            self._effects.on_undo(self._unborn, cell)
        elif spec.has_started:
            self._mailboxes.control(cell, START)
        return cell

    def _build_first(
        self,
        actor: type[Actor] | Callable[[], Actor] | Actor,
        mailbox: int,
        restart: Restart | str,
        supervision: Supervision | None,
        stop_timeout: float,
    ) -> tuple[Actor, Spec]:
        build = None if isinstance(actor, Actor) else actor
        try:
            built = actor if isinstance(actor, Actor) else actor()
        except TypeError:
            if callable(actor):
                raise
            raise TypeError(f"cannot spawn {shown(actor)}: {_what_to_spawn(actor)}") from None
        # Classes are spawned by the million; factories are mostly made for one actor.
        key = (build, mailbox, restart, supervision, stop_timeout) if isinstance(build, type) else None
        try:
            spec = self._specs.get(key) if key else None
        except TypeError:  # an option that is not hashable suits none of them
            spec = key = None
        if spec is None:
            _check_kind(actor, built)
            self._check_methods(built)
            _check_options(actor, mailbox, restart, supervision, stop_timeout)
            restart = Restart(restart)
            kind = type(built)
            spec = Spec(
                build,
                restart,
                supervision or Supervision(),
                mailbox,
                stop_timeout,
                has_started=kind.started is not Actor.started,
                has_stopped=kind.stopped is not Actor.stopped,
            )
            if key:
                if len(self._specs) >= SPECS_KEPT:  # classes may be made for one actor each, too
                    self._specs.clear()
                self._specs[key] = spec
        return built, spec

    def _check_methods(self, built: Actor) -> None:
        """Raise TypeError if its methods cannot be called. Only the first actor of each class is checked."""
        kind = type(built)
        if id(kind) not in self._fit:  # by its number, since a metaclass may have code of its own
            check_methods(built)
            if len(self._fit) >= SPECS_KEPT:
                self._fit.clear()
            self._fit[id(kind)] = kind

    def _begin(self, cell: Cell) -> None:
        if cell.spec is not None and cell.spec.has_started:
            self._mailboxes.control(cell, START)
        self._mailboxes.rest(cell)

    def _unborn(self, cell: Cell) -> None:
        if cell.parent is not None and cell.parent.details is not None and cell.parent.details.children:
            cell.parent.details.children.pop(cell.key, None)
        self.endings.cut(cell)

    def close(self) -> None:
        """End all actors at once, without calling their `stopped`: see `Endings.close`."""
        self.endings.close()
        self._specs.clear()
        self._fit.clear()

    # -- failing ---------------------------------------------------------------------------------------------------

    def failed(self, cell: Cell, error: BaseException, message: object) -> None:
        """A receive raised on that message. The cell handles nothing more until `_decide` has run."""
        self.endings.suspend(cell)
        self.failures.note(cell, error, self._now())
        self._soon(self.endings.tell_failed, cell.name, message, error)
        self._soon(self._decide, cell, error)

    def _decide(self, cell: Cell, error: BaseException, child: Cell | None = None) -> None:
        """Decide about a failed actor, or (`child`) about an actor whose child's failure was escalated."""
        details, spec, parent = cell.details, cell.spec, cell.parent
        if spec is None or parent is None or details is None or details.ending is not None:
            return
        supervision = self._supervision(parent)
        try:
            directive = called(Directive, called(supervision.decide, error))
        except Exception as raised:
            # The function that should decide cannot: that is the parent's own failure.
            broken = raised_by_user(raised)
            broken.__context__ = error
            self._escalate(cell, broken)
            return
        if directive is Directive.RESUME and cell.actor is None:
            directive = Directive.RESTART  # the actor failed while it was built: it has no state to resume with
        if directive is Directive.RESUME:
            self.endings.resume(cell)
            if child is not None:
                self._go_on(child, error)
        elif directive is Directive.RESTART:
            self._restart(cell, error)
        elif directive is Directive.ESCALATE:
            self._escalate(cell, error)
        else:
            self._give_up(cell, error, "by its supervision, as it failed")

    def _give_up(self, cell: Cell, error: BaseException, why: str, severity: Severity = "error") -> None:
        """End an actor for good, because of its failure."""
        text = f"actor {cell.name} was stopped for good {why}: {message_of(error)}"
        self._report(ActorTrouble("actor_stopped", severity, cell.name, text, None, error))
        self.endings.end(cell, "failed", error)

    def _go_on(self, child: Cell, error: BaseException) -> None:
        if child.spec is None or details_of(child).ending is not None:
            return
        if child.actor is None:
            self._give_up(child, error, "since it could not be built anew")
        else:
            self.endings.resume(child)

    def _supervision(self, parent: Cell) -> Supervision:
        return Supervision() if parent.spec is None else parent.spec.supervision

    def _escalate(self, cell: Cell, error: BaseException) -> None:
        parent = cell.parent
        if parent is None or parent is self.root or parent.details is None or parent.details.ending is not None:
            self._give_up(cell, error, "by its failure", "critical")
            return
        failure = ChildFailed(f"{cell.name}, a child of {parent.name}, failed: {shown(error)}")
        failure.__cause__ = error
        self.endings.suspend(parent)
        self.failures.note(parent, failure, self._now())
        self.endings.tell_failed(parent.name, CHILD, failure)
        self._soon(self._decide, parent, failure, cell)

    # -- restarting ------------------------------------------------------------------------------------------------

    def _restart(self, cell: Cell, error: BaseException | None) -> None:
        spec, parent, now = cell.spec, cell.parent, self._now()
        if spec is None or parent is None:
            return
        if not self._can_restart(cell):
            if error is None:
                self.endings.end(cell, "failed", None)
            else:
                why = "is temporary" if spec.build is not None else "was given as an instance"
                self._give_up(cell, error, f"by its failure, since it {why}")
            return
        supervision = self._supervision(parent)
        delay = self._count(cell, parent, supervision).next_delay(supervision, now)
        if delay is None:
            limit = RestartLimitReached(
                f"{cell.name} needed more than {supervision.intensity} restarts in {supervision.period} s; "
                f"the last failure: {shown(error)}"
            )
            limit.__cause__ = error
            self._escalate(cell, limit)
            return
        members = self._together(cell, parent, supervision.strategy)
        for other in members:
            if error is None:
                self.failures.forget(other)
            else:
                self.failures.note(other, error, now)
        self._end_next(Group(members, len(members), delay, cell, error is not None))

    def _can_restart(self, cell: Cell) -> bool:
        spec = cell.spec
        return spec is not None and spec.build is not None and spec.restart is not Restart.TEMPORARY

    def _count(self, cell: Cell, parent: Cell, supervision: Supervision) -> RestartCount:
        owner = details_of(cell if supervision.strategy == Strategy.ONE_FOR_ONE else parent)
        alone = supervision.strategy == Strategy.ONE_FOR_ONE
        count = owner.restarts if alone else owner.family_restarts
        if count is None:
            count = RestartCount()
            if alone:
                owner.restarts = count
            else:
                owner.family_restarts = count
        return count

    def _together(self, cell: Cell, parent: Cell, strategy: Strategy | str) -> list[Cell]:
        """The failed actor and the siblings that restart with it, in order of start."""
        if strategy == Strategy.ONE_FOR_ONE or parent.details is None or not parent.details.children:
            return [cell]
        siblings = list(parent.details.children.values())
        if strategy == Strategy.REST_FOR_ONE:
            siblings = siblings[siblings.index(cell) :]
        # Other suspended actors are left out: their own restart is under way.
        return [other for other in siblings if other is cell or not details_of(other).suspended]

    def _end_next(self, group: Group) -> None:
        """End the members of a restart one after another; when all have ended, wait, and build them anew."""
        if group.left:
            group.left -= 1
            cell = group.members[group.left]
            final = not self._can_restart(cell)
            if final and group.failed:
                text = f"actor {cell.name} was stopped for good, since it cannot be built anew with its siblings"
                error = self.failures.of(cell)
                self._report(ActorTrouble("actor_stopped", "error", cell.name, text, None, error))
            self.endings.end(cell, "restarted with its siblings", None, final=final, then=(self._end_next, (group,)))
            return
        timer = self._host.timers.arm(self._now() + group.delay, self._soon, self._build_anew, group)
        for cell in group.members:
            if cell.details is not None and cell.details.ending is None:
                cell.details.timer = timer

    def _build_anew(self, group: Group) -> None:
        for cell in group.members:
            spec, details, parent = cell.spec, cell.details, cell.parent
            if spec is None or spec.build is None or details is None or parent is None or details.ending is not None:
                continue  # the child was stopped meanwhile
            details.timer = None
            details.epoch += 1
            cell.ctx = Context(cell, details.epoch)
            try:
                cell.actor = called(self._receives.apart, spec.build)
            except Exception as raised:
                error = raised_by_user(raised)
                self.failures.note(cell, error, self._now())
                self.endings.tell_failed(cell.name, BUILT, error)
                self._soon(self._decide, cell, error)
                continue
            self._count(cell, parent, self._supervision(parent)).up_since = self._now()
            self._tell_restarted(cell, group)
            if spec.has_started and cell.control is not None:
                cell.control.appendleft(START)
            self.endings.resume(cell)

    def _tell_restarted(self, cell: Cell, group: Group) -> None:
        name, error = cell.name, self.failures.of(cell)
        why = "with its siblings"
        if group.failed:
            whose = "" if cell is group.began else f" of {group.began.name}"
            why = f"after a failure{whose}" + ("" if error is None else f": {message_of(error)}")
        elif cell is group.began:
            why = "as its restart is permanent"
        severity: Severity = "error" if group.failed else "info"
        text = f"actor {name} was built anew, {why}"
        self._report(ActorTrouble("actor_restarted", severity, name, text, None, error))

    # -- stopping --------------------------------------------------------------------------------------------------

    def stop(self, cell: Cell) -> None:
        """`Ref.stop`. Raises RuntimeError in other threads."""
        self._host.check_here()
        self._effects.stage(self._soon, self.endings.stop, cell)

    def leave(self, cell: Cell) -> None:
        """Stop an actor by its own `Context.stop`, after its receive has succeeded."""
        self._soon(self._leave, cell)

    def _leave(self, cell: Cell) -> None:
        spec, details = cell.spec, cell.details
        if spec is None or (details is not None and details.ending is not None):
            return
        if spec.restart is Restart.PERMANENT and spec.build is not None:
            self.endings.suspend(cell)
            self._restart(cell, None)
        else:
            self.endings.end(cell, "stopped", None)


def _what_to_spawn(given: object) -> str:
    """The advice about an object that is no actor, and does not make one."""
    if is_a(given, Machine):
        return "a machine is spawned by a runtime, as MachineActor(machine)"
    if is_a(given, MachineActor):
        return "a MachineActor is spawned by a runtime: Runtime.spawn"
    return "give a class that is derived from callboard.Actor, a function that makes an actor, or an actor"


def _check_options(actor: object, mailbox: object, restart: object, supervision: object, stop_timeout: Any) -> None:
    """Check the options of a spawn. Raises TypeError and ValueError."""
    if type(plain(mailbox)) is not int or cast("int", mailbox) < 1:
        raise ValueError(f"cannot spawn {shown(actor)} with mailbox={shown(mailbox)}: a whole number, at least 1")
    if restart not in tuple(Restart):
        allowed = ", ".join(Restart)
        raise ValueError(f"cannot spawn {shown(actor)} with restart={shown(restart)}: allowed are {allowed}")
    if supervision is not None and not is_a(supervision, Supervision):
        raise TypeError(f"cannot spawn {shown(actor)} with supervision={shown(supervision)}: a Supervision or None")
    try:
        seconds(number(stop_timeout))
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot spawn {shown(actor)} with that stop_timeout: {error}") from None


def _check_kind(actor: object, built: object) -> None:
    if not isinstance(built, Actor):
        gave = f"it gave {shown(built)}, not an Actor; derive its class from callboard.Actor"
        msg = f"cannot spawn {shown(actor)}: {gave}"
        raise TypeError(msg)
