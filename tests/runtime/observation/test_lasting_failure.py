"""When a notice reports that progress and text of bodies cannot be shared."""

from __future__ import annotations

from typing import Any

from callboard.runtime.errors import JournalError
from callboard.runtime.observation.lasting_failure import TRIES, LastingFailure


def test_a_failure_is_told_once_when_it_lasts_and_an_unexpected_one_at_once() -> None:
    told: list[str] = []

    def notice(event: str, severity: str, text: str, **facts: Any) -> None:
        told.append(f"{event} {severity} {facts['tries']} {text.rpartition(': ')[2]}")

    failure = LastingFailure(notice, "it cannot be written")
    for _ in range(TRIES - 1):
        failure.failed(JournalError("no answer"))
    failure.succeeded()  # an outage that is over
    for _ in range(3 * TRIES):
        failure.failed(JournalError("no rights"))
    assert told == [f"not_shared warning {TRIES} no rights"]
    failure.succeeded()
    for _ in range(TRIES):
        failure.failed(JournalError("no room"))
    assert told[1:] == [f"not_shared warning {TRIES} no room"]
    failure.succeeded()
    for _ in range(3):
        failure.failed(ValueError("a fault"))
        failure.succeeded()
    assert told[2:] == ["not_shared warning 1 a fault"]
