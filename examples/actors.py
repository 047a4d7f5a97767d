"""Actors without any job: state, questions, refusals, failures and their supervision, watching, timers.

    python examples/actors.py

A till is an actor. It asks a card reader, its child, which sometimes fails and is then rebuilt.
"""

from __future__ import annotations

from typing import Any

import anyio
from msgspec import Struct

from callboard import Actor, Context, Ref, Refusal, Runtime, Supervision, Terminated
from callboard.errors import ReceiveFailed


class Sale(Struct, frozen=True):
    """Take an amount, in cents, from a card."""

    cents: int
    card: str


class Total(Struct, frozen=True):
    """How much has been taken so far?"""


class Close(Struct, frozen=True):
    """The shop closes."""


class CardReader(Actor):
    """Reads cards. One of them breaks it."""

    def started(self, ctx: Context) -> None:
        print("  card reader: ready")

    def receive(self, message: Sale, ctx: Context) -> str:
        if message.card == "bent":
            raise OSError("the card is stuck")
        return f"{message.card} pays {message.cents / 100:.2f}"


class Till(Actor):
    """Counts the money. Its `receive` is a coroutine function, since it has to wait for the reader."""

    def __init__(self) -> None:
        self.total = 0
        self.reader: Ref | None = None

    def started(self, ctx: Context) -> None:
        self.reader = ctx.spawn(CardReader, name="reader")

    async def receive(self, message: Any, ctx: Context) -> Any:
        match message:
            case Sale(cents=cents) if cents <= 0:
                return Refusal(ValueError(f"{cents} cents is no price"))  # an error of the asker, not of the till
            case Sale() if self.reader is not None:
                try:
                    receipt: str = await self.reader.ask(message, timeout=60)
                except ReceiveFailed as error:  # the reader is being rebuilt; the till goes on
                    return Refusal(OSError(f"try another card: {error.__cause__}"))
                self.total += message.cents
                return receipt
            case Total():
                return self.total
            case Close():
                ctx.stop()
        return None


class Owner(Actor):
    """Watches the till, and waits for its end."""

    def __init__(self, till: Ref, told: anyio.Event) -> None:
        self.till = till
        self.told = told

    def started(self, ctx: Context) -> None:
        ctx.watch(self.till)
        ctx.after(0.02, "closing time")

    def receive(self, message: Any, ctx: Context) -> None:
        match message:
            case "closing time":
                self.till.tell(Close())
            case Terminated(reason=reason):
                print(f"the till has {reason}")
                self.told.set()


async def main() -> None:
    """Sell some things."""
    async with Runtime() as runtime:
        # Its failed children are rebuilt after 10 ms, at most three times a minute.
        till = runtime.spawn(Till, name="till", supervision=Supervision(intensity=3, backoff_min=0.01))
        print(await till.ask(Sale(1250, "gold card")))

        for sale in (Sale(-1, "gold card"), Sale(100, "bent")):
            try:
                await till.ask(sale)
            except (ValueError, OSError) as error:
                print("refused:", error)

        print(await till.ask(Sale(750, "new card")))  # waits until the reader is rebuilt
        print("taken:", await till.ask(Total()))

        told = anyio.Event()
        runtime.spawn(lambda: Owner(till, told))
        await told.wait()


if __name__ == "__main__":
    anyio.run(main)
