"""The guards that several of the published lifecycles share, over facts under the documents' names.

A condition that says in other words what its event says (that all steps are in S_SUCCESS, of
`all_steps_succeed`) is no guard: whoever fires the event says it. What an event leaves open is one.
"""

from __future__ import annotations

from typing import Protocol


class RetryFacts(Protocol):
    """How many retries there were and may be. Attempts are one more than retries."""

    @property
    def retry_count(self) -> int:
        """Retries made before the failure that is being decided about."""
        ...

    @property
    def max_retries(self) -> int:
        """How many there may be; 0 means one attempt."""
        ...


class DependencyFacts(Protocol):
    """What has to be done first."""

    @property
    def unmet(self) -> int:
        """Dependencies that are not satisfied yet."""
        ...


def retry_count_below_max_retries(facts: RetryFacts, _: object) -> bool:
    """There is another retry."""
    return facts.retry_count < facts.max_retries


def retry_count_at_max_retries(facts: RetryFacts, _: object) -> bool:
    """All retries have been made."""
    return facts.retry_count >= facts.max_retries


def dependencies_satisfied(facts: DependencyFacts, _: object) -> bool:
    """No dependency is outstanding."""
    return facts.unmet == 0
