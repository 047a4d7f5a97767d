"""One program, embedded or remote: its runtime is in this process, or in another one.

    python examples/remote.py

The same program with a runtime behind a board in another terminal (`callboard serve --allow-commands`):

    python examples/remote.py http://127.0.0.1:8470

It needs the extra `client`. Only one line in `opened` differs. If the board needs a token, the environment has it.
"""

from __future__ import annotations

import os
import sys

import anyio

from callboard import Approval, Retry, Runtime, Task, Transitioned, Workstream
from callboard.errors import DecisionConflict

try:
    from callboard.client import Client
except ModuleNotFoundError as missing:  # its text has the command that installs the extra
    raise SystemExit(str(missing)) from None

RELEASE = Workstream(
    "release",
    tasks=[
        Task("build", command=["sh", "-c", "echo built"]),
        Task("test", command=["sh", "-c", "echo tested"], depends_on=["build"], retry=Retry(max_attempts=3)),
        Task("deploy", command=["sh", "-c", "echo deployed"], depends_on=["test"], hold=Approval(expires="1h")),
    ],
)


async def release(runtime: Runtime | Client) -> str:
    """Submit the release, approve it when it waits, and wait for its end. Returns its state."""
    job = await runtime.submit(RELEASE, by="eve")
    async for event in job.events(kind="task", notices=False):
        if isinstance(event, Transitioned):
            print(event.entity_id.rpartition("/")[2], event.to_state)
            if event.to_state == "held":
                break
    deploy = job.task("deploy")
    await deploy.approve(by="ana", reason="tests are green")
    try:
        await deploy.approve(by="ana")
    except DecisionConflict as conflict:
        print(conflict.decision.by, "had", conflict.decision.verdict, "it")
    outcome = await job.wait()
    print("release", outcome.raise_for_state().state)
    return outcome.state


def opened(url: str | None) -> Runtime | Client:
    """The runtime, or the client of one."""
    return Runtime() if url is None else Client(url, token=os.environ.get("CALLBOARD_TOKEN"))


async def main(url: str | None) -> None:
    """Release once."""
    async with opened(url) as runtime:
        await release(runtime)


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else None)
