"""Fixtures of the tests of several nodes: every stage ends with its test."""

from __future__ import annotations

from tests.actors import conftest

_stages_end = conftest._stages_end  # pyright: ignore[reportPrivateUsage] - pytest finds it here
