"""Agents: a planner spawns child jobs, which share a flaky model; people approve dangerous steps.

    python examples/agents.py

The model fails while four agents ask it. After three failures in a row its breaker opens: waiting tasks are parked, and
use up no try. After a short cooldown one of them probes; when the model works again, the others go on. Then nothing is
published and nothing deleted before a person has decided: ana approves the first, ben rejects the second.
"""

from __future__ import annotations

import anyio

from callboard import (
    Alert,
    Approval,
    Breaker,
    JobHandle,
    Retry,
    Runtime,
    Task,
    TaskContext,
    Tool,
    Transitioned,
    Workstream,
)

QUESTIONS = ["origins", "rivals", "prices", "risks"]
TOOLS = {"model": Tool(max_parallel=1, breaker=Breaker(failure_threshold=3, cooldown=0.2, ignore=["ValueError"]))}
"""Set on the runtime, these settings apply to every job: one call at a time. A ValueError means a bad question, and
does not count as a failure of the model."""


class Model:
    """A model that fails at its third to sixth calls."""

    def __init__(self) -> None:
        self.calls = 0

    async def ask(self, question: str) -> str:
        """Answer a question. Raises ConnectionError while the model fails."""
        self.calls += 1
        if 3 <= self.calls <= 6:
            raise ConnectionError("the model is overloaded")
        return f"what is known of {question}"


model = Model()
published: list[str] = []
paged: list[str] = []


# -- bodies ------------------------------------------------------------------------------------------------------------


async def research(task: TaskContext) -> str:
    """One agent's question to the model."""
    return await model.ask(task.args["question"])


async def summarise(task: TaskContext) -> str:
    """An agent's summary of the answer."""
    answer: str = task.results["research"]
    return answer.upper()


def agent(question: str) -> Workstream:
    """The workstream of one agent."""
    again = Retry(max_attempts=9, base_delay=0.02, jitter=0)  # a failed probe is a try; parking is none
    return Workstream(
        f"agent-{question}",
        tasks=[
            Task("research", run=research, args={"question": question}, tool="model", retry=again),
            Task("summarise", run=summarise, depends_on=["research"]),
        ],
    )


async def plan(task: TaskContext) -> list[str]:
    """Spawn an agent for each question, as a child job, and wait for them all. They are cancelled if this fails."""
    children = [await task.submit(agent(question), name=question) for question in QUESTIONS]
    outcomes = [(await child.wait()).raise_for_state() for child in children]
    return [outcome.results["summarise"] for outcome in outcomes]


async def publish(task: TaskContext) -> int:
    """The first dangerous step: it cannot be taken back."""
    published.extend(task.results["plan"])
    return len(published)


async def delete(task: TaskContext) -> None:
    """The second dangerous step, which is rejected."""
    raise AssertionError("nobody approved this")


async def page(task: TaskContext) -> None:
    """The alert: called for each error, at most ten times a minute."""
    paged.append(task.args["text"])


# -- people ------------------------------------------------------------------------------------------------------------


async def decide(job: JobHandle) -> None:
    """Decide about held tasks, as ana and ben would."""
    async for event in job.events(kind="task", to_state="held", notices=False):
        held = event.entity_id.rpartition("/")[2] if isinstance(event, Transitioned) else None
        if held == "publish":
            assert not published
            await job.task("publish").approve(by="ana", reason="read it, it is fine")
        elif held == "delete":
            await job.task("delete").reject(by="ben", reason="we still need the drafts")


async def main() -> None:
    """Run the planner's job, and check the result."""
    async with Runtime(tools=TOOLS, alerts=[Alert(run=page, max_alerts=10, period="1m")]) as runtime:
        breaker = runtime.events(kind="breaker", notices=False)
        job = await runtime.submit(
            Workstream(
                "report",
                tasks=[
                    Task("plan", run=plan),
                    Task("publish", run=publish, depends_on=["plan"], hold=Approval(people=1, expires="1h")),
                    Task("delete", run=delete, depends_on=["publish"], hold=Approval(people=2), optional=True),
                ],
            ),
            id="report",
        )
        await decide(job)  # until the job ends
        outcome = await job.wait()
        breaker.close()
        states = [event.to_state async for event in breaker if isinstance(event, Transitioned)]

    print("the breaker was", " -> ".join(states))
    print("told on the way:", *paged, sep="\n  ")
    print("published:", *published, sep="\n  ")
    assert outcome.ok
    assert model.calls == 8  # four answers and four failures: no agent called the model while its breaker was open
    assert states == ["closed", "closed", "open", "half_open", "open", "half_open", "closed"]
    assert paged.count("breaker model open") == 2
    assert len(published) == outcome.results["publish"] == len(QUESTIONS)
    assert outcome.tasks["delete"].state == "cancelled"


if __name__ == "__main__":
    anyio.run(main)
