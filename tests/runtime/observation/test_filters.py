"""Filters of events that nothing can ever meet: refused where that is certain, told by a warning where it is likely."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from callboard import Lifecycle, Machine, Phase, Runtime, State, Task, Transition, Workstream
from callboard.machines.lifecycles import LIFECYCLES
from callboard.runtime.observation.filters import wanted_by

pytestmark = pytest.mark.anyio
WAITS = Workstream("w", tasks=[Task("a", command=["true"], wait="1h")])


@pytest.mark.parametrize(
    ("filters", "words"),
    [
        (
            {"kind": "approval", "to_state": "aproved"},
            "'aproved' is no state of the kind approval; did you mean 'approved'",
        ),
        ({"kind": "approval", "from_state": "zz"}, "^'zz' is no state of the kind approval; there are: .*held"),
        ({"kind": "actor", "to_state": "running"}, "the kind actor is a notice, which has no to_state"),
        ({"kind": ["actor", "runtime"], "from_state": ["a", "b"]}, "kind actor or runtime is a notice, which has no"),
    ],
)
def test_a_state_of_kinds_with_one_machine_is_refused(filters: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        wanted_by(filters)
    with pytest.raises(ValueError, match=words):
        Runtime().events(**filters)


@pytest.mark.parametrize(
    "filters",
    [
        {"kind": "approval", "to_state": ["approved", "rejected"]},
        {"kind": ["approval", "runtime"], "to_state": "held"},
        {"kind": "task", "to_state": "completed"},
        {"kind": "task", "to_state": [str(one) for one in LIFECYCLES["guarded"]["task"].machine.states]},
        {"kind": "machine", "to_state": "anything"},
        {"kind": ["task", "machine"], "to_state": "anything"},
        {"to_state": "anything"},
        {"entity": "page-2", "to_state": "old"},
    ],
)
def test_a_state_that_something_may_have_is_taken_in_silence(filters: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Runtime().events(**filters)


@pytest.mark.parametrize("name", ["from_state", "to_state"])
def test_a_state_that_no_known_lifecycle_has_is_told_by_a_warning(name: str) -> None:
    filters: Any = {"kind": "task", name: "complete"}
    words = "^no lifecycle that is known here has this state: 'complete' is no state of the kind task; .*'completed'"
    with pytest.warns(UserWarning, match=words) as told:
        Runtime().events(**filters)
    assert told[0].filename == __file__


OWN = Machine(
    "ours", "new",
    states=[
        State("new", Phase.PENDING, bounded_by="its dependencies"),
        State("works", Phase.RUNNING, bounded_by="its body"),
        State("done", Phase.COMPLETED, terminal=True),
        State("gone", Phase.CANCELLED, terminal=True),
    ],
    transitions=[
        Transition("new", "begin", "works"), Transition("works", "finish", "done"), Transition("new", "drop", "gone"),
        Transition("works", "drop", "gone"),
    ],
)  # fmt: skip
OURS = Lifecycle("ours", "task", OWN, {"start": ("begin",), "succeed": ("finish",), "cancel": ("drop",)})


def test_a_lifecycle_of_the_application_is_known_once_the_runtime_has_it() -> None:
    with pytest.warns(UserWarning, match="'gone' is no state of the kind task"):
        Runtime().events(kind="task", to_state="gone")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Runtime(lifecycles=[OURS]).events(kind="task", to_state="gone")


async def test_a_task_that_the_job_does_not_have_is_refused() -> None:
    async with Runtime(drain_deadline=0) as runtime:
        job = await runtime.submit(WAITS, id="w")
        for task in ("zz", ["a", "zz"], "w@1/zz"):
            with pytest.raises(ValueError, match=r"^job 'w' has no task '.*zz'; it has: a$"):
                job.events(task=task)
        for task in ("a", "w@1/a", ["a"]):
            job.events(task=task).close()
        await job.cancel()
        await job.wait()
        with pytest.raises(ValueError, match="has no task 'zz'"):
            job.events(task="zz")


async def test_a_state_that_no_entity_of_the_job_has_is_refused() -> None:
    async with Runtime(drain_deadline=0) as runtime:
        job = await runtime.submit(WAITS, id="w")
        with pytest.raises(ValueError, match="'complete' is no state of the kind task; did you mean 'completed'"):
            job.events(kind="task", to_state="complete")
        with pytest.raises(ValueError, match="'heldd' is no state of the kind approval or job or task or workstream"):
            job.events(to_state="heldd")
        for state in ("completed", "executing", "waiting", "held"):
            job.events(to_state=state).close()


async def test_a_job_with_a_lifecycle_of_its_own_may_have_any_state() -> None:
    """Where another program knows it, this one does not."""
    async with Runtime(drain_deadline=0) as runtime:
        task = Task("a", command=["true"], wait="1h", lifecycle="guarded")
        job = await runtime.submit(Workstream("w", tasks=[task]))
        job.events(kind="task", to_state="anything").close()


def test_a_reader_over_http_is_told_as_well() -> None:
    pytest.importorskip("litestar", reason="the extra `web` is not installed")
    from callboard.runtime.web.stream.stream import _asked

    (found,) = _asked({"kind": ["approval"], "to_state": ["aproved"]}, None)[3]
    assert (found.where, found.text.partition(";")[0]) == ("to_state", "'aproved' is no state of the kind approval")
