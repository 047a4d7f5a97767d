"""The guards that several of the published lifecycles share, over facts under the documents' names.

A condition that only repeats its event in other words (`all_steps_succeed`: all steps are in S_SUCCESS) is no guard:
the caller states it by firing the event. A guard decides what the event leaves open.
"""

from __future__ import annotations

from typing import Protocol


class RetryFacts(Protocol):
    """How many retries were made and are allowed. Attempts are one more than retries."""

    @property
    def retry_count(self) -> int:
        """Retries made before the failure that is being decided about."""
        ...

    @property
    def max_retries(self) -> int:
        """How many retries are allowed; 0 means one attempt."""
        ...


class DependencyFacts(Protocol):
    """The dependencies of a task."""

    @property
    def unmet(self) -> int:
        """Dependencies that are not satisfied yet."""
        ...


def retry_count_below_max_retries(facts: RetryFacts, _: object) -> bool:
    """A retry is left."""
    return facts.retry_count < facts.max_retries


def retry_count_at_max_retries(facts: RetryFacts, _: object) -> bool:
    """All retries have been made."""
    return facts.retry_count >= facts.max_retries


def dependencies_satisfied(facts: DependencyFacts, _: object) -> bool:
    """All dependencies are satisfied."""
    return facts.unmet == 0
