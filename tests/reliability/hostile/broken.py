"""A module that does, while it is imported, what a test says."""

from tests.reliability.hostile import guests

guests.now()  # type: ignore[attr-defined]
