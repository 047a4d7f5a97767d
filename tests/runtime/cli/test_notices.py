"""`callboard notices`: problems that no transition reports, from a file and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from callboard import Actor, Hook, Supervision, Task, Worker, Workstream

from .conftest import CommandResult
from .test_machines import running

Cli = Callable[..., CommandResult]


class Echo(Actor):
    def receive(self, message: Any, ctx: Any) -> Any:
        raise KeyError(message)


async def one() -> int:
    return 1


def falls() -> None:
    raise ValueError("no such channel\x1b[31m")


def left_with_failures() -> None:
    hooked = Workstream("w", tasks=[Task("a", run=one, on_completed=[Hook(run=falls)])])
    workers = [Worker("loop", engine="loop"), Worker("threads", engine="thread")]
    with running(workers=workers, supervision=Supervision(backoff_min=0)) as live:
        echo = live.portal.call(partial(live.runtime.spawn, Echo, name="echo"))
        for _ in range(3):
            live.portal.call(echo.tell, "x")
        job = live.portal.call(partial(live.runtime.submit, hooked, id="j1"))
        live.portal.call(job.wait)
        live.portal.call(live.runtime._services.hooks_over)
        live.portal.call(live.runtime._services.settled, 60)


def test_what_went_wrong_is_told_after_the_fact(cli: Cli, folder: Path) -> None:
    left_with_failures()
    result = cli("notices")
    assert result.code == 0
    assert "actor_failed  echo (3 times since" in result.out
    assert "hook_failed  j1@1/a: the on_completed hook" in result.out
    assert "\x1b" not in result.out
    assert "Traceback" not in result.out
    traced = cli("notices", "j1", "--traces")
    assert "    Traceback (most recent call last):" in traced.out
    assert 'raise ValueError("no such channel' in traced.out
    assert "actor_failed" not in traced.out
    rows = [json.loads(line) for line in cli("notices", "--json").out.splitlines()]
    by_event = {row["event"]: row for row in rows}
    assert (by_event["actor_failed"]["count"], by_event["actor_failed"]["error"]) == (3, "KeyError")
    assert by_event["actor_failed"]["at"].endswith("Z")
    assert [row["at"] for row in rows] == sorted(row["at"] for row in rows)
    assert len(cli("notices", "--json", "--limit", "1").out.splitlines()) == 1
    assert cli("notices", "echo", "--since", "0s").out == "no notices about echo within 0s\n"


def test_status_says_that_there_are_some(cli: Cli, folder: Path) -> None:
    left_with_failures()
    assert "in notices of the last day: see `callboard notices`" in cli("status").out
    assert "1 error in notices: see `callboard notices j1`" in cli("status", "j1").out
