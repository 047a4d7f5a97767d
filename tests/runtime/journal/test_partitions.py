"""The tables of a journal in PostgreSQL can be partitioned as docs/scaling.md describes, while a runtime uses them."""

from __future__ import annotations

import re
from contextlib import closing
from pathlib import Path

import anyio
import anyio.to_thread
import pytest

from callboard import Runtime, Task, Workstream

pytestmark = pytest.mark.postgres
PAGE = Path(__file__).parents[3] / "docs" / "scaling.md"


async def noop() -> int:
    return 1


async def run(runtime: Runtime, name: str) -> None:
    tasks = [Task(f"t{number}", run=noop) for number in range(50)]
    outcome = await (await runtime.submit(Workstream(name, tasks=tasks), id=name)).wait()
    assert outcome.state == "completed"


def do(postgres: str, sql: str) -> None:
    from callboard.runtime.journal.postgres.address import parse
    from callboard.runtime.journal.postgres.opening import connect

    with closing(connect(parse(postgres), "test")) as connection:
        connection.execute(sql.encode())


def test_tables_are_parted_and_parted_again_under_a_runtime_which_goes_on(postgres: str) -> None:
    anyio.run(parted, postgres)


async def parted(postgres: str) -> None:
    first, further = re.findall(r"```sql\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    async with Runtime(postgres) as runtime:
        await run(runtime, "before")
        await anyio.to_thread.run_sync(do, postgres, first.replace("1024 *", "2 *"))  # as if some epochs were over
        await run(runtime, "parted")
    async with Runtime(postgres) as runtime:
        await anyio.to_thread.run_sync(do, postgres, further.replace("274877906944", str(2 << 28)))
        await run(runtime, "parted-again")
        for name in ("before", "parted", "parted-again"):
            job = await runtime.job(name)
            assert (await job.wait()).state == "completed"
