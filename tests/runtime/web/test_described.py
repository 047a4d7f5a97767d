"""The description of the interface is complete: every operation, and every answer that it gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

from callboard.runtime.web.http import app, problems
from callboard.runtime.web.http.app import HANDLERS

pytestmark = pytest.mark.anyio


async def described(client: httpx.AsyncClient) -> Any:
    return (await client.get("/api/openapi.json")).raise_for_status().json()


async def test_every_operation_is_described_once(client: httpx.AsyncClient) -> None:
    told = await described(client)
    assert told["openapi"].startswith("3.1")
    operations = [one for methods in told["paths"].values() for one in methods.values()]
    ids = [one["operationId"] for one in operations]
    assert len(set(ids)) == len(ids) == sum(len(handler.paths) for handler in HANDLERS)
    for one in operations:
        assert {"401", "403", "404", "421", "422", "429", "503"} <= one["responses"].keys(), one["operationId"]
        assert one.get("description") or one.get("summary"), one["operationId"]


async def test_problems_and_views_are_described_by_their_fields(client: httpx.AsyncClient) -> None:
    schemas = (await described(client))["components"]["schemas"]
    assert {"machine", "state", "event", "allowed", "findings"} <= schemas["ProblemDetails"]["properties"].keys()
    for view in ("JobView", "TaskView", "WorkerView", "BreakerView", "MachineView", "NewJob"):
        (found,) = [schema for name, schema in schemas.items() if name.endswith(view)]
        assert found["properties"]


async def test_a_body_that_need_not_say_anything_may_be_left_out(client: httpx.AsyncClient) -> None:
    posted = {
        path: methods["post"] for path, methods in (await described(client))["paths"].items() if "post" in methods
    }
    needed = {path for path, one in posted.items() if one["requestBody"]["required"]}
    assert {path for path in needed if not path.endswith("/fire")} == {
        "/api/jobs", "/api/workers", "/api/jobs/{job}/skip", "/api/jobs/{job}/send",
        "/api/jobs/{job}/tasks/{task}/send",
    }  # fmt: skip
    assert {path for path in posted if path.endswith("/fire")} <= needed
    assert posted["/api/jobs/{job}/cancel"]["summary"] == "Cancel a job"


def test_the_page_has_a_table_of_every_problem_that_is_told_and_no_other() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "http.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`/problems/[^|]*) \| ([^|]*) \|", page, re.MULTILINE)
    listed = {(word, status) for words, status in rows for word in re.findall(r"`/problems/([a-z-]+)`", words)}
    sources = [path.read_text(encoding="utf-8") for path in Path(app.__file__).parents[1].rglob("*.py")]
    told = {(word, status) for text in sources for status, word in re.findall(r'Problem\(\s*(\d+), "([a-z-]+)"', text)}
    told |= {(word, str(status)) for status, word in problems._WORDS.items()}  # those of the framework
    assert listed == told | {("refused", "any")}
