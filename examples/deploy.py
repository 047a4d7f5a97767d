"""Run `deploy.toml`, and approve it as its two reviewers would.

    python examples/deploy.py

Three runs: one goes live; one is rejected; one is cancelled while it goes live, and its cancel hook rolls it back.
"""

import tempfile
from pathlib import Path

import anyio
from msgspec.structs import replace

from callboard import JobHandle, Runtime, Transitioned, Workstream, load
from callboard.errors import DecisionConflict, DecisionRefused

FILE = Path(__file__).parent / "deploy.toml"


async def until(job: JobHandle, task: str, state: str) -> None:
    """Wait until a task is in a state."""
    events = job.events(notices=False)
    if job.task(task).record.state == state:
        return
    async for event in events:
        if isinstance(event, Transitioned) and event.entity_id.endswith(f"/{task}") and event.to_state == state:
            return


async def reviewed(job: JobHandle) -> None:
    """Both reviewers approve. One approval is not enough, each person counts once, the submitter may not."""
    await until(job, "deploy", "held")
    (pending,) = job.approvals()
    print(f"{pending.task} waits for {', '.join(pending.missing)}")
    task = job.task("deploy")
    try:
        await task.approve(by="dan")
    except DecisionRefused as refusal:
        print(f"refused: {refusal.why}")
    await task.approve(by="ana", reason="tests are green")
    try:
        await task.approve(by="Ana")
    except DecisionConflict as conflict:
        print(f"refused: {conflict.decision.by} has {conflict.decision.verdict} already")
    await task.approve(by="ben")


async def main() -> None:
    """Run it three times."""
    with tempfile.TemporaryDirectory() as folder:
        spec = replace(load(FILE).workstream, cwd=folder)
        async with Runtime() as runtime:
            job = await runtime.submit(spec, by="dan")
            await reviewed(job)
            await until(job, "go-live", "waiting")
            print(f"approved: go-live {job.task('go-live').record.state}")
            outcome = await job.wait()
            print(f"first: {outcome.state}")
            assert outcome.ok

            job = await runtime.submit(spec, by="dan")
            await until(job, "deploy", "held")
            await job.task("deploy").reject(by="ben", reason="not on a Friday")
            outcome = await job.wait()
            print(f"second: {outcome.state}: {outcome.error}")
            assert outcome.state == "failed"

            watched: Workstream = replace(spec, env={**spec.env, "WATCH": "60"})
            job = await runtime.submit(watched, by="dan")
            await reviewed(job)
            await until(job, "go-live", "running")
            await job.cancel("the error rate rises")
            outcome = await job.wait()
            rolled_back = (Path(folder) / "rolled-back.txt").exists()
            print(f"third: {outcome.state}, {'rolled back' if rolled_back else 'not rolled back'}")
            assert outcome.state == "cancelled"
            assert rolled_back


if __name__ == "__main__":
    anyio.run(main)
