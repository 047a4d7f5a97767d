"""The fixtures in a user's pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.inner_pytest import pytest_with
from tests.test_public import HEAVY, modules_after

from callboard import Task, Workstream
from callboard.testing import Simulation

SUITE = """
import pytest
from callboard import Approval, Task, Workstream

def release():
    return Workstream("release", tasks=[Task("deploy", command=["x"], hold=Approval(expires="72h"))])

@pytest.mark.callboard(tools={})
def test_it_is_never_approved(simulation):
    assert simulation.seed == 5
    job = simulation.submit(release(), id="job")
    simulation.advance("72h")
    assert job.state == "completed"

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_it_is_approved(virtual_runtime, anyio_backend):
    async with virtual_runtime() as runtime:
        job = await runtime.submit(release())
        await runtime.advance("71h")
        await job.task("deploy").approve(by="ana")
        assert (await job.wait()).ok
"""


def test_the_fixtures_are_given_a_seed_and_a_failure_shows_it_with_the_trace(tmp_path: Path) -> None:
    (tmp_path / "test_release.py").write_text(SUITE)
    done = subprocess.run(
        [*pytest_with("anyio"), "--callboard-seed", "5", "--strict-markers"],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=600,
        env={**os.environ, "PYTEST_ADDOPTS": "", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert "- callboard -" in done.stdout
    assert "seed 5; the end of the trace" in done.stdout
    assert "3d 00:00:00.000    job job: running -> failed (fail)" in done.stdout


def test_pytest_starts_without_anything_of_ours() -> None:
    ours = modules_after("import callboard.runtime.testing.plugin")
    assert {name for name in ours if name.startswith("callboard.")} == {
        "callboard.runtime", "callboard.runtime.testing", "callboard.runtime.testing.plugin",
    }  # fmt: skip
    assert not modules_after("import callboard") & {"pytest"}
    assert not (ours & HEAVY) - {"asyncio"}  # which pytest may have imported


def test_the_fixture_is_a_simulation(simulation: Simulation, request: pytest.FixtureRequest) -> None:
    assert simulation.submit(Workstream("flow", tasks=[Task("a", command=["x"])])).run().ok
    assert simulation.seed == request.config.getoption("--callboard-seed")
