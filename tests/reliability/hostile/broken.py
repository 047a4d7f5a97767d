"""A module that runs a test's function while it is imported."""

from tests.reliability.hostile import guests

guests.now()  # type: ignore[attr-defined]


async def work() -> int:
    """Return what is asked for where it can be imported at all."""
    return 1
