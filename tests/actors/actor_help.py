"""Helpers for tests of users' actors: a dispatcher with a clock that tests move, and a few plain actors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

from callboard.actors.users.actor import Actor, Context
from callboard.actors.users.ref import Ref
from callboard.actors.users.strategy import Supervision
from callboard.runtime.dispatch.actor_failures import ActorTrouble
from callboard.runtime.dispatch.clock import VirtualClock
from callboard.runtime.dispatch.dispatcher import Dispatcher


class Boom(Exception):  # noqa: N818 - short, and only here
    """The failure of the tests' actors."""


class Bench:
    """A dispatcher with a virtual clock, the reported failures, and a record that actors write into."""

    def __init__(self, supervision: Supervision | None = None) -> None:
        self.clock = VirtualClock()
        self.trouble: list[ActorTrouble] = []
        self.record: list[Any] = []
        self.dispatcher = Dispatcher(
            clock=self.clock,
            supervision=supervision,
            on_trouble=self.trouble.append,
        )
        self.spawn = self.dispatcher.spawn
        self.dead = self.dispatcher.dead_letters

    @property
    def critical(self) -> list[tuple[str, str]]:
        """The unhandled failures: each with the actor and the event."""
        return [(one.actor, one.event) for one in self.trouble if one.severity == "critical"]

    def told(self) -> list[tuple[str, str]]:
        """The reports, each with its actor."""
        return [(one.event, one.actor) for one in self.trouble]

    def idle(self) -> None:
        self.dispatcher.run_until_idle()

    def after(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.dispatcher.run_until_idle()

    def reasons(self) -> list[str]:
        return [letter.reason.value for letter in self.dead.newest()]


@asynccontextmanager
async def running(dispatcher: Dispatcher) -> AsyncIterator[None]:
    """`run()` in the background; the dispatcher is closed at the end."""
    async with anyio.create_task_group() as group:
        group.start_soon(dispatcher.run)
        try:
            yield
        finally:
            dispatcher.close()


class Script(Actor):
    """Calls each message, which is a function of (actor, ctx), or records it."""

    def __init__(self, bench: Bench, label: str = "") -> None:
        self.bench = bench
        self.label = label

    def receive(self, message: Any, ctx: Context) -> Any:
        if callable(message):
            return message(self, ctx)
        self.bench.record.append((self.label, message) if self.label else message)
        return message


class Loud(Script):
    """A script that records its beginnings and ends."""

    def started(self, ctx: Context) -> None:
        self.bench.record.append((self.label, "started"))

    def stopped(self, ctx: Context) -> None:
        self.bench.record.append((self.label, "stopped"))


def boom(actor: Script, ctx: Context) -> None:
    raise Boom


def spawning(name: str, kind: type[Script] = Loud, **options: Any) -> Callable[[Script, Context], Ref]:
    """A message that spawns a child of that name."""

    def spawn(actor: Script, ctx: Context) -> Ref:
        return ctx.spawn(lambda: kind(actor.bench, name), name=name, **options)

    return spawn


def child(parent: Ref, name: str) -> Ref:
    """The living child of that name."""
    assert parent.details is not None
    assert parent.details.children is not None
    return parent.details.children[name]
