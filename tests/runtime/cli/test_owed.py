"""Owed work: hooks, alerts and callbacks that have not ended count as unfinished, and are shown."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from callboard import Alert, Fire, Hook, MachineActor, Task, Worker, Workstream
from callboard.machines.lifecycles.execution import EXECUTION

from .conftest import CommandResult
from .test_machines import running

Cli = Callable[..., CommandResult]
OWED = 6
"""Two hooks, and an alert of each transition that is an error."""
WAITS = "echo run >> began; while [ ! -e gate ]; do sleep 0.01; done; echo $0 >> done"


def left_owing(folder: Path) -> None:
    """Leave a journal in which all entities have ended, and their hooks have still to run."""
    waits = partial(Hook, shell=True, timeout="10m")
    task = Task("a", command=["false"], on_failed=[waits(command=f"sh -c '{WAITS}' task")])
    spec = Workstream(
        "w", tasks=[task], on_failed=[waits(command=f"sh -c '{WAITS}' stream")],
        alerts=[Alert(command=f"sh -c '{WAITS}' alert", shell=True, timeout="10m")],
    )  # fmt: skip
    workers = [Worker("commands", engine="command", capacity=1)]
    with running(workers=workers) as live:
        job = live.portal.call(partial(live.runtime.submit, spec, id="j1"))
        live.portal.call(job.wait)
        until = time.monotonic() + 60
        while not (folder / "began").exists() or (folder / "began").read_text().count("run") < OWED:
            assert time.monotonic() < until
    assert not (folder / "done").exists()


def test_hooks_that_are_owed_are_unfinished_work(cli: Cli, folder: Path) -> None:
    left_owing(folder)
    for told in (cli("status"), cli("status", "j1")):
        assert f"{OWED} owed: still to run, at the next start at the latest" in told.out
        assert "  on_failed hook `sh -c" in told.out
        assert "of j1@1/a" in told.out
        assert "  alert `sh -c" in told.out
    for args in (("status", "--json"), ("status", "j1", "--json")):
        rows = [json.loads(line) for line in cli(*args).out.splitlines()]
        hooks = [row for row in rows if row["kind"] == "hook"]
        assert {(row["of"], row["owner"], row["job_id"]) for row in hooks} == {
            ("hook", "j1@1/a", "j1"), ("hook", "j1@1", "j1"), ("alert", "j1@1/a", "j1"), ("alert", "j1@1", "j1"),
            ("alert", "j1", "j1"),
        }  # fmt: skip
        assert all(row["since"].startswith("20") for row in hooks)
    told = cli("stuck", "--older-than", "0s")
    assert told.code == 1
    assert told.out.count(" owed for ") == OWED
    assert told.out.count("    callboard resume\n") == OWED
    assert cli("stuck", "--older-than", "1h").code == 0  # not for long

    (folder / "gate").touch()
    told = cli("resume", "--plain")
    assert told.code == 0
    assert f"{OWED} owed" in told.out
    assert sorted((folder / "done").read_text().split()) == ["alert"] * (OWED - 2) + ["stream", "task"]
    assert cli("resume").out == "Nothing is unfinished in callboard.db.\n"
    assert "owed" not in cli("status").out
    assert cli("stuck", "--older-than", "0s").code == 0


def test_a_program_ends_when_what_it_owes_has_run(cli: Cli, folder: Path) -> None:
    (folder / "a.toml").write_text(
        '[[tasks]]\nname = "a"\ncommand = ["true"]\n[[on_completed]]\n'
        'command = "sleep 0.5; touch hooked"\nshell = true\n'
    )
    assert cli("run", "a.toml", "--drain-deadline", "0s").code == 0
    assert (folder / "hooked").exists()


def test_a_callback_of_a_machine_waits_for_a_program_that_has_it(
    cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "calls_back.py").write_text("import anyio\nasync def told(task):\n    await anyio.sleep_forever()\n")
    monkeypatch.syspath_prepend(str(folder))
    from calls_back import told as function  # type: ignore[import-not-found]

    with running() as live:
        actor = MachineActor(EXECUTION, on_enter={"queued": function})
        run = live.portal.call(lambda: live.runtime.spawn(actor, name="run-7"))
        live.portal.call(run.ask, Fire("ENQUEUE"))
        live.portal.call(live.runtime._services.settled, 60)
    sys.modules.pop("calls_back")
    (folder / "calls_back.py").unlink()
    sys.path_importer_cache.clear()
    assert "1 owed" in cli("status").out
    assert "  on_enter queued callback `calls_back:told` of run-7" in cli("status").out
    assert "callback run-7 owed" in cli("stuck", "--older-than", "0s").out
    result = cli("resume", "--plain")  # it lacks the function: the hook is reported, and stays
    assert result.code == 0
    assert "waits until a program that has its function starts" in result.everything
    assert "1 owed" in cli("status").out
