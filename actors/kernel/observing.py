"""The hook with which tests observe the table rows that actors take. All modules that take rows import it."""

from __future__ import annotations

from collections.abc import Callable

from ...machines import Machine, Transition

observe_transition: Callable[[Machine, Transition], None] | None = None
"""If set, it is called with each table row that an actor takes: tests record with it which rows they covered."""
