"""Observers: neither their errors nor the program around them disturb the runtime."""

from __future__ import annotations

import importlib.machinery
import sys
from types import ModuleType
from typing import Any, cast

import anyio
import pytest

from callboard import Runtime, Task, Workstream
from callboard.actors.records.transition import Transitioned
from callboard.runtime.loaded_modules import imported

pytestmark = pytest.mark.anyio


async def one() -> int:
    return 1


def half_imported(monkeypatch: pytest.MonkeyPatch, name: str) -> ModuleType:
    """Add a module in the state in which another thread imports it: without any of its names."""
    spec: Any = importlib.machinery.ModuleSpec(name, None)
    spec._initializing = True
    module = ModuleType(name)
    module.__spec__ = spec
    monkeypatch.setitem(sys.modules, name, module)
    return module


async def test_what_another_thread_is_importing_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["structlog", "structlog.contextvars"]
    if "trio" not in sys.modules or not cast("Any", sys.modules["trio"]).lowlevel.in_trio_run():
        names.append("trio")
    for name in names:
        half_imported(monkeypatch, name)
    with anyio.fail_after(300):
        async with Runtime() as runtime:
            tasks = [Task("plain", run=plain), Task("one", run=one)]
            outcome = await (await runtime.submit(Workstream("w", tasks=tasks))).wait()
    assert outcome.ok


def plain() -> None:
    pass


def test_a_module_counts_as_imported_from_its_end_on(monkeypatch: pytest.MonkeyPatch) -> None:
    module = half_imported(monkeypatch, "structlog")
    assert imported("structlog") is None
    cast("Any", module.__spec__)._initializing = False
    assert imported("structlog") is module
    assert imported("there_is_no_such_module") is None


async def test_a_subscriber_whose_filter_raises_is_told_and_disturbs_nobody() -> None:
    def wanted(event: Transitioned) -> bool:
        if event.to_state == "running":
            raise ValueError("a filter's own mistake")
        return True

    with anyio.fail_after(300):
        async with Runtime() as runtime:
            events = runtime._services.hub.subscribe(wanted)
            outcome = await (await runtime.submit(Workstream("w", tasks=[Task("one", run=one)]))).wait()
        assert outcome.ok
        with pytest.raises(ValueError, match="a filter's own mistake"):
            while True:
                assert isinstance(await anext(events), Transitioned)
        assert [event async for event in events] == []
