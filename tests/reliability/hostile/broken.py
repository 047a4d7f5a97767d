"""A module that does, while it is imported, what a test says."""

from tests.reliability.hostile import guests

guests.now()  # type: ignore[attr-defined]


async def work() -> int:
    """Return what is asked for where it can be imported at all."""
    return 1
