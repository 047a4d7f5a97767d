"""A lifecycle of one's own: tasks that are reviewed before they are merged, in the team's words.

    python examples/own_lifecycle.py

A machine is a table of states and events. The meaning of a state for the runtime is its phase: in `reviewing`, a body's
result is validated. The rest follows: history, status, events, log and audit show these tasks in the team's words.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import anyio

from callboard import (
    Check,
    Lifecycle,
    Machine,
    Phase,
    Retry,
    Runtime,
    State,
    Task,
    Transition,
    Transitioned,
    Workstream,
)
from callboard.machines.audit import audit_lines

CHANGE = Machine(
    "change",
    "open",
    states=(
        State("open", Phase.PENDING, bounded_by="its dependencies, and a free slot"),
        State("in_work", Phase.RUNNING, bounded_by="the limits of its body"),
        State("reviewing", Phase.VALIDATING, bounded_by="the limits of its checks"),
        State("sent_back", Phase.RETRYING, bounded_by="the backoff"),
        State("merged", Phase.COMPLETED, terminal=True),
        State("dropped", Phase.FAILED, terminal=True),
        State("withdrawn", Phase.CANCELLED, terminal=True),
    ),
    transitions=(
        Transition("open", "take", "in_work"),
        Transition("open", "withdraw", "withdrawn"),
        Transition("in_work", "ask_for_review", "reviewing"),
        Transition("in_work", "send_back", "sent_back", severity="warning"),
        Transition("in_work", "drop", "dropped", severity="error"),
        Transition("in_work", "withdraw", "withdrawn"),
        Transition("reviewing", "merge", "merged"),
        Transition("reviewing", "drop", "dropped", severity="error"),
        Transition("sent_back", "take", "in_work"),
        Transition("sent_back", "withdraw", "withdrawn"),
    ),
)
REVIEWED = Lifecycle(
    "reviewed",
    "task",
    CHANGE,
    # Only events that map to several of the team's events are listed: the phases decide about all others.
    events={"start": ("take",), "fail": ("send_back", "drop"), "cancel": ("withdraw",)},
)

tries: list[str] = []


async def fix() -> str:
    """A change that succeeds at the second try."""
    tries.append("fix")
    if len(tries) == 1:
        raise ConnectionError("the branch is gone")
    return "fixed"


async def hack() -> str:
    """A change that the review rejects."""
    return "hacked"


async def no_reviewer_likes_it() -> bool:
    """A review."""
    return False


async def main(log: Path) -> None:
    """Run two changes by the lifecycle, and print their history."""
    tasks = [
        Task("fix", run=fix, retry=Retry(max_attempts=3, base_delay=0.05)),
        Task("hack", run=hack, checks=[Check(run=no_reviewer_likes_it)], optional=True),
    ]
    seen: dict[str, list[str]] = {"fix": [], "hack": []}
    async with Runtime(lifecycles=[REVIEWED], jsonl=log) as runtime:
        job = await runtime.submit(Workstream("changes", tasks=tasks, lifecycle="reviewed"))
        async for event in job.events(kind="task", notices=False):
            if isinstance(event, Transitioned):
                name = event.entity_id.rpartition("/")[2]
                seen[name].append(event.to_state)
                print(f"{name:<5} {event.event:<15} {event.to_state}")
        outcome = await job.wait()
    assert seen["fix"] == ["open", "in_work", "sent_back", "in_work", "reviewing", "merged"]
    assert seen["hack"] == ["open", "in_work", "reviewing", "dropped"]
    assert outcome.ok
    assert outcome.tasks["fix"].state == "completed"  # the phase that its actor is in


with TemporaryDirectory() as folder:
    path = Path(folder, "changes.jsonl")
    anyio.run(main, path)
    with path.open("rb") as lines:
        assert audit_lines(lines, lifecycles=[REVIEWED]) == []
print("and the log holds to the table")
