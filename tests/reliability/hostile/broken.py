"""A module that runs a test's function while it is imported."""

from tests.reliability.hostile import guests

guests.now()  # type: ignore[attr-defined]


async def work() -> int:
    """The body that a specification could name if this module could be imported."""
    return 1
