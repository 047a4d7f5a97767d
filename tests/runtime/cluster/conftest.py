"""What the tests of several nodes share: no stage outlives its test."""

from __future__ import annotations

from tests.actors import conftest

_stages_end = conftest._stages_end  # pyright: ignore[reportPrivateUsage] - pytest finds it here
