"""The settings of a runtime that are checked when it is made."""

from __future__ import annotations

import random
import time
from typing import Any

import anyio
import pytest

from callboard import Defaults, Retry, Runtime, Task, Worker, Workstream
from callboard.errors import SpecificationError


async def endless() -> None:
    await anyio.sleep_forever()


class OwnIds:
    def new(self) -> str:
        return "1"


@pytest.mark.anyio
@pytest.mark.parametrize(
    "defaults",
    [
        Defaults(timeout="100ms", retry=Retry(max_attempts=1)),
        Defaults(timeout="100ms", retry={"max_attempts": 1}),  # type: ignore[arg-type]
        {"timeout": "100ms", "retry": {"max_attempts": 1}},
    ],
)
async def test_defaults_are_taken_as_those_of_a_workstream(defaults: Any) -> None:
    async with Runtime(defaults=defaults, drain_deadline=0) as runtime:
        job = await runtime.submit(Workstream("w", tasks=[Task("a", run=endless)]))
        with anyio.fail_after(10):
            outcome = await job.wait()
    assert outcome.state == "failed"
    assert "the attempt limit was reached" in (outcome.error or "")


@pytest.mark.parametrize(
    ("defaults", "text"),
    [
        (Defaults(timeout="soon"), r"defaults\.timeout: 'soon' is not a duration"),
        (Defaults(retry=3), r"defaults\.retry: must be a Retry, .*write Retry\(max_attempts=3\)"),  # type: ignore[arg-type]
        ({"timeout": "soon"}, r"defaults\.timeout: 'soon' is not a duration"),
        ({"timeuot": 1}, r"defaults\.timeuot: unknown key .*did you mean 'timeout'"),
        ({"retry": 3}, r"defaults\.retry: must be a Retry"),
        (3, r"defaults: must be a Defaults, .*write Defaults\(retry=...\)"),
        (0, "defaults: must be a Defaults"),
        ([], "defaults: must be a Defaults"),
    ],
)
def test_invalid_defaults_are_refused_as_those_of_a_workstream(defaults: Any, text: str) -> None:
    with pytest.raises(SpecificationError, match=rf"in the runtime's settings:\n  {text}"):
        Runtime(defaults=defaults)


@pytest.mark.parametrize(
    ("setting", "given", "text"),
    [
        ("workers", 3, "workers is a list of Worker or None, not 3"),
        ("workers", Worker("w", engine="loop"), r"workers is a list of Worker or None, not Worker\(name='w'"),
        ("workers", ["loop"], r"workers\[0\] is a Worker, not 'loop'"),
        ("workers", [Worker("w", engine="loop"), {"name": "v"}], r"workers\[1\] is a Worker, not {'name': 'v'}"),
        ("health_checks", 3, "health_checks is a HealthChecks or None, not 3"),
        ("health_checks", {"misses": 2}, "health_checks is a HealthChecks or None, not {'misses': 2}"),
        ("secrets", 3, "secrets is a mapping, a plain function of a name or None, not 3"),
        ("secrets", "token", "secrets is a mapping, a plain function of a name or None, not 'token'"),
        ("supervision", 3, "supervision is a Supervision or None, not 3"),
        ("clock", 0, r"clock is a clock .*monotonic\(\) and time\(\) or None, not 0"),
        ("random", 3, r"random is a random\.Random or None, not 3"),
        ("ids", "a", r"ids is a source of ids .* new\(\) or None, not 'a'"),
    ],
)
def test_a_setting_of_a_wrong_kind_is_refused_by_its_name(setting: str, given: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        Runtime(**{setting: given})


@pytest.mark.parametrize(
    ("setting", "given"),
    [
        ("workers", ()),
        ("workers", (Worker(name, engine="loop") for name in ("v", "w"))),
        ("secrets", {}),
        ("secrets", {"TOKEN": "hidden"}.get),
        ("clock", time),
        ("random", random.SystemRandom()),
        ("ids", OwnIds()),
    ],
)
def test_whatever_can_be_used_as_a_setting_is_taken(setting: str, given: Any) -> None:
    Runtime(**{setting: given})
