"""Random requests made from the description of the interface: none fails, and each answer is described."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from anyio.from_thread import start_blocking_portal
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from callboard import Approval, MachineActor, Runtime, Task, TaskContext, Workstream
from callboard.machines import JOB

from .conftest import URL, client_of

schemathesis = pytest.importorskip("schemathesis")
requests = pytest.importorskip("requests")
pytestmark = pytest.mark.board

EXAMPLES = 8 if "CALLBOARD_LABORATORY" in os.environ else 5
"""Requests to each operation."""
NAMES: dict[str, list[Any]] = {
    "job": ["held", "gone", "none", "a:b"], "task": ["one", "held", "none"], "worker": ["loop", "none"],
    "tool": ["compiler", "none"], "machine": ["mine", "none"], "attempt": [1, 2],
}  # fmt: skip
WORKSTREAM = Workstream(
    "w", tasks=[Task("one", run="greet", tool="compiler"), Task("held", run="greet", hold=Approval())]
)
Ask = Callable[[str, str, Any, Any], httpx.Response]


async def greet(task: TaskContext) -> str:
    return "hello"


async def prepared(runtime: Runtime) -> None:
    """Something of every kind to ask for."""
    runtime.task(greet)
    runtime.spawn(MachineActor(JOB), name="mine")
    await runtime.submit(WORKSTREAM, id="held")
    gone = await runtime.submit(WORKSTREAM, id="gone")
    await gone.cancel()
    await gone.wait()


@pytest.fixture
def ask() -> Iterator[Ask]:
    """Sends requests to a board whose runtime is on the event loop of a thread."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(Runtime(drain_deadline=0.0)) as runtime,
    ):
        portal.call(prepared, runtime)
        with portal.wrap_async_context_manager(client_of(runtime)) as client:

            async def send(method: str, url: str, headers: Any, body: Any) -> httpx.Response:
                return await client.request(method, url, headers=headers, content=body)

            yield lambda method, url, headers, body: portal.call(send, method, url, headers, body)


def test_whatever_is_asked_is_answered_as_it_is_described(ask: Ask) -> None:
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks

    all_of_them = [
        not_a_server_error, checks.status_code_conformance, checks.content_type_conformance,
        checks.response_schema_conformance,
    ]  # fmt: skip
    schema = schemathesis.openapi.from_dict(ask("GET", "/api/openapi.json", {}, None).json())
    schema.config.update(base_url=URL)
    counts: Counter[int] = Counter()
    for result in schema.exclude(operation_id=["events", "stream_task"]).get_all_operations():
        operation = result.ok()
        places = {name: st.sampled_from(NAMES[name]) for name in NAMES if f"{{{name}}}" in operation.path}

        @seed(1)
        @settings(
            max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=[*HealthCheck],
        )  # fmt: skip
        @given(case=operation.as_strategy(), places=st.fixed_dictionaries(places))
        def try_it(case: Any, places: dict[str, Any]) -> None:
            case.path_parameters.update(places)
            sent = requests.Request(**case.as_transport_kwargs(base_url=URL)).prepare()
            answer = ask(sent.method, sent.url, dict(sent.headers), sent.body)
            counts[answer.status_code] += 1
            case.validate_response(answer, checks=all_of_them)

        try_it()
    assert {200, 404, 409, 422} <= counts.keys(), counts
