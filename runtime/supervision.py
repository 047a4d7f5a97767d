"""Lives: how users' actors begin, fail, are built anew, and end. The strategy itself is pure: actors/strategy.py.

Rules
- An actor that failed handles nothing more until it is decided what becomes of it; its mailbox stays.
- Whoever ends, for good or to be built anew, goes the same way: it finishes the message in hand, then its children
  end, the last started first, then its `stopped` runs. Its message and its `stopped` may take `stop_timeout` seconds
  each; what takes longer is cancelled, abandoned and reported, and the way goes on without it.
- A restart ends all that are restarted, the last started first, waits the delay, and builds them anew in order
  of start. Children of a restarted actor end: whoever built them builds them again.
- What an actor cannot survive goes to its parent; what the parent cannot, to its parent. At the root the actor is stopped and
  `on_critical` told. The host application is never taken down.
- No step here calls another one deeper than a constant: steps follow one another through `soon`, so that a million
  children, or ten thousand generations, end without recursion.
- To end an actor is to cut its links (`_finish`): its cell stays as the reference that others hold.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from msgspec import Struct

from ..actors.actor import Actor, Context, Terminated
from ..actors.actor_errors import ActorStopped, ChildFailed, NameTaken, RestartLimitReached
from ..actors.ref import BUSY, NOTHING, Host, Ref, Spec, Turn
from ..actors.strategy import Directive, Restart, RestartCount, Strategy, Supervision
from .grave import Grave

if TYPE_CHECKING:
    from .dispatcher import Dispatcher

__all__ = ["START", "Supervisor"]


class _Start:
    """The control message that runs `started`."""

    def __repr__(self) -> str:
        return "<started>"


START = _Start()

_ENDED: deque[Any] = deque()
"""The control lane of every ended cell: not None, so the dispatcher looks twice before it runs one."""

_Step = tuple[Callable[..., object], tuple[Any, ...]]


class Ending(Struct, gc=False, eq=False):
    """How a cell is ending."""

    reason: str
    error: BaseException | None
    final: bool  # False: it will be built anew
    then: list[_Step]


class Group(Struct, gc=False, eq=False):
    """Those who are restarted together, in order of start."""

    members: list[Ref]
    left: int  # how many have not ended yet; the last started end first
    delay: float


class Supervisor:
    """The lives of the actors of one dispatcher."""

    def __init__(self, host: Dispatcher, supervision: Supervision) -> None:
        self._host = host
        self._specs: dict[tuple[Any, ...], Spec] = {}
        self._number = 0
        self._grave = cast("Host", Grave(host))  # all of Host that is asked of a stopped cell
        spec = Spec(None, Restart.TEMPORARY, supervision, 0, 0, has_started=False, has_stopped=False)
        self.root = Ref(host, None, BUSY, None, None, 0, None, spec, None, "root", None)
        host.life(self.root).children = {}

    # -- beginning -------------------------------------------------------------------------------------------------

    def spawn(
        self,
        parent: Ref,
        actor: type[Actor] | Callable[[], Actor] | Actor,
        name: str | None,
        mailbox: int,
        restart: Restart | str,
        supervision: Supervision | None,
        stop_timeout: float,
    ) -> Ref:
        """Build an actor and give it a cell among the children of `parent`."""
        host = self._host
        if host.closed or parent.spec is None:
            who = "the dispatcher is closed" if host.closed else f"{parent.name} has stopped"
            msg = f"cannot spawn {actor!r}: {who}"
            raise ActorStopped(msg)
        life = host.life(parent)
        children = life.children
        if children is None:
            children = life.children = {}
        if name is not None and name in children:
            msg = f"cannot spawn {actor!r} as {name!r}: {children[name]!r} has that name"
            raise NameTaken(msg)
        built, spec = self._build_first(actor, mailbox, Restart(restart), supervision, stop_timeout)
        self._number = number = self._number + 1
        key: int | str = number if name is None else name
        cell = Ref(host, built, NOTHING, None, None, mailbox - 1, None, spec, parent, key, None)
        cell.ctx = Context(cell, 0)
        children[key] = cell
        if host.current is not None:
            # Unborn until the receive that made it has succeeded: it takes mail, and is not queued.
            cell.first = BUSY
            host.stage(self._begin, cell)
            host.on_undo(self._unborn, cell)
        elif spec.has_started:
            host.control(cell, START)
        return cell

    def _build_first(
        self,
        actor: type[Actor] | Callable[[], Actor] | Actor,
        mailbox: int,
        restart: Restart,
        supervision: Supervision | None,
        stop_timeout: float,
    ) -> tuple[Actor, Spec]:
        build = None if isinstance(actor, Actor) else actor
        built = actor if isinstance(actor, Actor) else actor()
        # Classes are spawned by the million; factories are mostly made for one actor.
        key = (build, mailbox, restart, supervision, stop_timeout) if isinstance(build, type) else None
        spec = self._specs.get(key) if key else None
        if spec is None:
            _check_kind(actor, built)
            if mailbox < 1 or stop_timeout < 0:
                msg = f"cannot spawn {actor!r} with mailbox={mailbox}, stop_timeout={stop_timeout}: at least 1, at least 0"
                raise ValueError(msg)
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
                self._specs[key] = spec
        return built, spec

    def _begin(self, cell: Ref) -> None:
        if cell.spec is not None and cell.spec.has_started:
            self._host.control(cell, START)
        self._host.rest(cell)

    def _unborn(self, cell: Ref) -> None:
        if cell.parent is not None and cell.parent.life is not None and cell.parent.life.children:
            cell.parent.life.children.pop(cell.key, None)
        self._cut(cell)

    # -- failing ---------------------------------------------------------------------------------------------------

    def failed(self, cell: Ref, error: BaseException) -> None:
        """A receive raised. The cell handles nothing more until `_decide` has run."""
        self._suspend(cell)
        self._host.soon(self._decide, cell, error)

    def _suspend(self, cell: Ref) -> None:
        host = self._host
        life = host.life(cell)
        if life.suspended:
            return
        life.suspended = True
        life.queued = cell.first is not NOTHING and cell is not host.current and life.turn is None
        host.put_back(cell)
        cell.first = BUSY
        if cell.control is None:
            cell.control = deque()

    def _resume(self, cell: Ref) -> None:
        """Let it handle messages again."""
        host = self._host
        life = host.life(cell)
        life.suspended = False
        if life.turn is not None:
            return  # its receive is still running: the parent of a failed child that was resumed
        if life.queued:
            life.queued = False
            host.ready.remove(cell)
        host.rest(cell)

    def _decide(self, cell: Ref, error: BaseException, child: Ref | None = None) -> None:
        """What becomes of an actor that failed, or (`child`) of one whose child's failure was escalated."""
        life, spec, parent = cell.life, cell.spec, cell.parent
        if spec is None or parent is None or life is None or life.ending is not None:
            return
        supervision = self._supervision(parent)
        try:
            directive = Directive(supervision.decide(error))
        except Exception as broken:
            # The function that should decide cannot: that is the parent's own failure.
            broken.__context__ = error
            self._escalate(cell, broken)
            return
        if directive is Directive.RESUME and cell.actor is None:
            directive = Directive.RESTART  # it failed while it was built: there is nothing to go on with
        if directive is Directive.RESUME:
            self._resume(cell)
            if child is not None:
                self._go_on(child, error)
        elif directive is Directive.RESTART:
            self._restart(cell, error)
        elif directive is Directive.ESCALATE:
            self._escalate(cell, error)
        else:
            self.end(cell, "failed", error)

    def _go_on(self, child: Ref, error: BaseException) -> None:
        if child.spec is None or self._host.life(child).ending is not None:
            return
        if child.actor is None:
            self.end(child, "failed", error)
        else:
            self._resume(child)

    def _supervision(self, parent: Ref) -> Supervision:
        return Supervision() if parent.spec is None else parent.spec.supervision

    def _escalate(self, cell: Ref, error: BaseException) -> None:
        parent = cell.parent
        if parent is None or parent is self.root or parent.life is None or parent.life.ending is not None:
            self._host.critical(cell, "stopped for good by its failure", error)
            self.end(cell, "failed", error)
            return
        failure = ChildFailed(f"{cell.name}, a child of {parent.name}, failed: {error!r}")
        failure.__cause__ = error
        self._suspend(parent)
        self._host.soon(self._decide, parent, failure, cell)

    # -- restarting ------------------------------------------------------------------------------------------------

    def _restart(self, cell: Ref, error: BaseException | None) -> None:
        spec, parent, now = cell.spec, cell.parent, self._host.now()
        if spec is None or parent is None:
            return
        if not self._can_restart(cell):
            self.end(cell, "failed", error)
            return
        supervision = self._supervision(parent)
        delay = self._count(cell, parent, supervision).next_delay(supervision, now)
        if delay is None:
            limit = RestartLimitReached(
                f"{cell.name} needed more than {supervision.intensity} restarts in {supervision.period} s; "
                f"the last failure: {error!r}"
            )
            limit.__cause__ = error
            self._escalate(cell, limit)
            return
        members = self._together(cell, parent, supervision.strategy)
        self._end_next(Group(members, len(members), delay))

    def _can_restart(self, cell: Ref) -> bool:
        spec = cell.spec
        return spec is not None and spec.build is not None and spec.restart is not Restart.TEMPORARY

    def _count(self, cell: Ref, parent: Ref, supervision: Supervision) -> RestartCount:
        owner = self._host.life(cell if supervision.strategy == Strategy.ONE_FOR_ONE else parent)
        alone = supervision.strategy == Strategy.ONE_FOR_ONE
        count = owner.restarts if alone else owner.family_restarts
        if count is None:
            count = RestartCount()
            if alone:
                owner.restarts = count
            else:
                owner.family_restarts = count
        return count

    def _together(self, cell: Ref, parent: Ref, strategy: Strategy | str) -> list[Ref]:
        """The one that failed and the siblings that are restarted with it, in order of start."""
        if strategy == Strategy.ONE_FOR_ONE or parent.life is None or not parent.life.children:
            return [cell]
        siblings = list(parent.life.children.values())
        if strategy == Strategy.REST_FOR_ONE:
            siblings = siblings[siblings.index(cell) :]
        # Others that are suspended are being dealt with already, and come back by their own restart.
        return [other for other in siblings if other is cell or not self._host.life(other).suspended]

    def _end_next(self, group: Group) -> None:
        """End the members of a restart one after another; when all have ended, wait, and build them anew."""
        if group.left:
            group.left -= 1
            cell = group.members[group.left]
            final = not self._can_restart(cell)
            self.end(cell, "restarted with its siblings", None, final=final, then=(self._end_next, (group,)))
            return
        host = self._host
        timer = host.timers.arm(host.now() + group.delay, host.soon, self._build_anew, group)
        for cell in group.members:
            if cell.life is not None and cell.life.ending is None:
                cell.life.timer = timer

    def _build_anew(self, group: Group) -> None:
        host = self._host
        for cell in group.members:
            spec, life, parent = cell.spec, cell.life, cell.parent
            if spec is None or spec.build is None or life is None or parent is None or life.ending is not None:
                continue  # it was stopped meanwhile
            life.timer = None
            life.epoch += 1
            cell.ctx = Context(cell, life.epoch)
            try:
                cell.actor = host.apart(spec.build)
            except Exception as error:
                host.soon(self._decide, cell, error)
                continue
            self._count(cell, parent, self._supervision(parent)).up_since = host.now()
            if spec.has_started and cell.control is not None:
                cell.control.appendleft(START)
            self._resume(cell)

    # -- ending ----------------------------------------------------------------------------------------------------

    def stop(self, cell: Ref) -> None:
        """`Ref.stop`, outside of any receive."""
        self.end(cell, "stopped", None)

    def leave(self, cell: Ref) -> None:
        """`Context.stop`: the actor itself wants to end."""
        spec, life = cell.spec, cell.life
        if spec is None or (life is not None and life.ending is not None):
            return
        if spec.restart is Restart.PERMANENT and spec.build is not None:
            self._suspend(cell)
            self._restart(cell, None)
        else:
            self.end(cell, "stopped", None)

    def end(
        self, cell: Ref, reason: str, error: BaseException | None, *, final: bool = True, then: _Step | None = None
    ) -> None:
        """Begin to end a cell; `then` runs once it has ended. One that is ending is not ended twice."""
        host = self._host
        if cell.spec is None:
            if then is not None:
                host.soon(then[0], *then[1])
            return
        life = host.life(cell)
        ending = life.ending
        if ending is not None:
            if then is not None:
                ending.then.append(then)
            if final and not ending.final:
                ending.final, ending.reason, ending.error = True, reason, error
            return
        if life.timer is not None:  # it waited to be built anew, with others perhaps: their timer stays
            life.timer = None
        self._suspend(cell)
        life.ending = Ending(reason, error, final, [] if then is None else [then])
        if life.turn is not None:
            self._limit(cell)
        else:
            host.soon(self._end_children, cell)

    def turn_ended(self, cell: Ref) -> None:
        """The coroutine receive that an ending cell was busy with is over."""
        self._unlimit(cell)
        self._host.soon(self._end_children, cell)

    def _end_children(self, cell: Ref) -> None:
        life = cell.life
        if life is None:
            return
        if life.children:
            last = next(reversed(life.children.values()))
            self.end(last, "parent_stopped", None, then=(self._end_children, (cell,)))
            return
        actor = cell.actor
        if actor is None or cell.spec is None or not cell.spec.has_stopped:
            self._ended(cell, None)
            return
        self._host.run_hook(cell, actor.stopped, self._ended)
        if life.turn is not None:
            self._limit(cell)

    def _ended(self, cell: Ref, error: BaseException | None) -> None:
        """`stopped` is over, or there was none."""
        host = self._host
        if error is not None:
            host.critical(cell, "its stopped() failed", error)
        life = cell.life
        if life is None or life.ending is None:
            return
        self._unlimit(cell)
        ending: Ending = life.ending
        life.ending = None
        if ending.final:
            self._finish(cell, ending.reason, ending.error)
        else:
            cell.actor = None
            host.fail_owed(cell, "was built anew")
        for function, args in ending.then:
            host.soon(function, *args)

    def _limit(self, cell: Ref) -> None:
        host = self._host
        timeout = 0.0 if cell.spec is None else cell.spec.stop_timeout
        host.life(cell).timer = host.timers.arm(host.now() + timeout, host.soon, self._overdue, cell)

    def _unlimit(self, cell: Ref) -> None:
        life = cell.life
        if life is not None and life.timer is not None:
            self._host.timers.cancel(life.timer)
            life.timer = None

    def _overdue(self, cell: Ref) -> None:
        """It has had its time: go on without it."""
        life = cell.life
        if life is None or life.turn is None or life.ending is None:
            return
        turn: Turn = life.turn
        life.timer = None
        life.ending.reason = "abandoned"
        self._host.abandon(turn)
        timeout = 0.0 if cell.spec is None else cell.spec.stop_timeout
        self._host.critical(cell, f"abandoned: {turn.message!r} was still running {timeout} s after its stop", None)
        if turn.hook is not None:
            self._ended(cell, None)
        else:
            self._host.soon(self._end_children, cell)

    def _finish(self, cell: Ref, reason: str, error: BaseException | None) -> None:
        """The end of an actor: its mail, those who watch it, its place among its siblings, its links."""
        host, life, parent = self._host, cell.life, cell.parent
        host.end_mail(cell)
        if parent is not None and parent.life is not None and parent.life.children is not None:
            parent.life.children.pop(cell.key, None)
        watchers = None if life is None else life.watchers
        if life is not None:
            for target in life.watching or ():
                if target.life is not None and target.life.watchers is not None:
                    target.life.watchers.pop(cell, None)
        self._cut(cell)
        for watcher in watchers or ():
            if watcher.life is not None and watcher.life.watching is not None:
                watcher.life.watching.pop(cell, None)
            host.control(watcher, Terminated(cell, reason, error))

    def _cut(self, cell: Ref) -> None:
        cell.first = BUSY
        cell.control = _ENDED
        cell.host = self._grave
        cell.actor = cell.more = cell.ctx = cell.spec = cell.parent = cell.life = None

    # -- watching --------------------------------------------------------------------------------------------------

    def watch(self, watcher: Ref, target: Ref) -> None:
        """Have `watcher` told when `target` ends; at once if it has."""
        host = self._host
        if watcher.spec is None:
            return
        if target.spec is None:
            host.control(watcher, Terminated(target, "stopped"))
            return
        watching, watched = host.life(watcher), host.life(target)
        if watching.watching is None:
            watching.watching = {}
        if watched.watchers is None:
            watched.watchers = {}
        watching.watching[target] = None
        watched.watchers[watcher] = None

    def unwatch(self, watcher: Ref, target: Ref) -> None:
        """Have it told no longer."""
        if watcher.life is not None and watcher.life.watching is not None:
            watcher.life.watching.pop(target, None)
        if target.life is not None and target.life.watchers is not None:
            target.life.watchers.pop(watcher, None)

    # -- all of them -----------------------------------------------------------------------------------------------

    def stop_family(self, then: Callable[[], object]) -> None:
        """Stop everybody, the last started first, and call `then`."""
        self._host.soon(self._stop_last, then)

    def _stop_last(self, then: Callable[[], object]) -> None:
        children = self.root.life.children if self.root.life is not None else None
        if children:
            last = next(reversed(children.values()))
            self.end(last, "stopped", None, then=(self._stop_last, (then,)))
        else:
            then()

    def close(self) -> None:
        """End everybody at once, without a word to them: the links are cut, asks and offers in progress fail."""
        cells = [self.root]
        while cells:
            cell = cells.pop()
            life = cell.life
            if life is not None:
                cells.extend((life.children or {}).values())
                if life.turn is not None:
                    self._host.abandon(life.turn)
            self._host.end_mail(cell)
            self._cut(cell)
        self._specs.clear()


def _check_kind(actor: object, built: object) -> None:
    if not isinstance(built, Actor):
        msg = f"cannot spawn {actor!r}: it gave {built!r}, not an Actor; derive its class from callboard.Actor"
        raise TypeError(msg)
