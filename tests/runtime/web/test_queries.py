"""The query parameters of requests: the accepted values, and the refusals of all others."""

from __future__ import annotations

from base64 import urlsafe_b64encode

import httpx
import pytest

pytestmark = pytest.mark.anyio

REFUSED = {
    "jobs?nope=1": "there is no parameter 'nope' here; there are: limit, cursor, state, name, older_than, newer_than",
    "jobs?state=nope": "'nope' is no state of a job; there are: submitted, pending, ",
    "jobs?state=running&state=nope": "'nope' is no state of a job; there are: ",
    "jobs/none/graph?limit=1": "there is no parameter 'limit' here; it takes none",
    "workers?state=held": "'held' is no state of a worker; there are: ",
    "jobs?older_than=nan": "older_than must be a point in time, in UTC epoch seconds as 1767225600, not 'nan'",
    "jobs?newer_than=1h": "newer_than must be a point in time, in UTC epoch seconds as 1767225600, not '1h'",
    "jobs?older_than=-5": "older_than must be a point in time, ",
    "jobs?older_than=1e999": "older_than must be a point in time, ",
    "jobs?older_than=": "older_than must be a point in time, ",
    "jobs?limit=1&limit=2": "limit may be given once, not 2 times",
    "jobs?limit=0": "limit must be a whole number from 1 to 500, not '0'",
    "jobs?limit=501": "limit must be a whole number from 1 to 500, not '501'",
    "jobs?limit=%2B5": "limit must be a whole number from 1 to 500, not '+5'",
    "jobs?limit=ten": "limit must be a whole number from 1 to 500, not 'ten'",
    "jobs?name=" + "n" * 201: "name must be a text of at most 200 characters, not 'nnn",
    "jobs?cursor=zzz": "this is not a cursor: use `next` of the page before, unchanged",
    "transitions?cursor=zzz": "there is no parameter 'cursor' here; there are: job, entity, kind, after, ",
    "transitions?kind=nope": "'nope' is no kind; there are: job, workstream, task, approval, worker, breaker, machine",
    "transitions?kind=runtime": "'runtime' is no kind; there are: job, ",
    "transitions?after=-1": "after must be a whole number from 0 on, not '-1'",
    "events?after=x": "after must be a whole number from 0 on, not 'x'",
    "events?notices=1": "notices must be true or false, not '1'",
}


async def test_what_is_not_taken_is_refused_with_what_is(client: httpx.AsyncClient) -> None:
    for asked, said in REFUSED.items():
        answer = await client.get(f"/api/{asked}")
        assert (answer.status_code, answer.json()["type"]) == (422, "/problems/specification"), asked
        (found,) = answer.json()["findings"]
        assert found["text"].startswith(said), asked
        assert answer.json()["detail"] == f"{found['where']}: {found['text']}"


async def test_all_that_is_wrong_is_told_at_once_and_nothing_at_length(client: httpx.AsyncClient) -> None:
    answer = await client.get(f"/api/jobs?limit=0&older_than=x&{'n' * 30_000}={'v' * 30_000}&limits=1")
    assert [one["where"] for one in answer.json()["findings"]] == ["limit", "limits", "n" * 60, "older_than"]
    assert len(answer.content) < 2_000
    posted = await client.post("/api/jobs/none/cancel?force=true")
    assert (posted.status_code, posted.json()["findings"][0]["where"]) == (422, "force")
    assert (await client.get("/health/live?verbose")).status_code == 200


async def test_only_cursors_that_were_given_out_are_taken(client: httpx.AsyncClient) -> None:
    first = (await client.get("/api/workers?limit=1")).json()
    given = first["next"]
    second = (await client.get(f"/api/workers?cursor={given}")).json()
    (one,) = first["items"]
    assert one not in second["items"]
    made_up = [urlsafe_b64encode(b"%d" % number).decode() for number in (0, 1, 2, 12_345)]
    for cursor in (*made_up, "MQ==", "MQ", given + "==", given[:-1], "A" + given[1:], "", "%C3%A4", "A" * 100):
        refused = await client.get(f"/api/workers?cursor={cursor}")
        assert (refused.status_code, refused.json()["findings"][0]["where"]) == (422, "cursor"), cursor


async def test_the_words_of_every_lifecycle_are_states(client: httpx.AsyncClient) -> None:
    for asked in ("jobs?state=queued&state=running", "workers?state=idle", "machines?state=anything"):
        assert (await client.get(f"/api/{asked}")).status_code == 200, asked
