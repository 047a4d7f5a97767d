"""A FastAPI application that streams the tokens of a running task to a browser, as Server-Sent Events:

    python examples/tokens.py

It needs `fastapi`. `GET /stories/ID` begins a story, or listens to the one that runs under that ID; several may listen.
Here the application is asked in the same program; `uvicorn tokens:app` would serve it.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import httpx
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from callboard import Dropped, Runtime, Task, TaskContext, Workstream

STORY = "A bear walked into a theatre and asked when the next rehearsal was ."
runtime = Runtime()


async def write(task: TaskContext) -> str:
    """What a model would write, word by word."""
    words = STORY.split()
    for number, word in enumerate(words, 1):
        await anyio.sleep(0.01)
        task.emit(word + " ")
        task.progress(number, len(words), "writing")
    await task.publish("words", len(words))
    return STORY


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncIterator[None]:
    async with runtime:
        yield


app = FastAPI(lifespan=lifespan)


@app.get("/stories/{name}")
async def story(name: str) -> StreamingResponse:
    job = await runtime.submit(Workstream("story", tasks=[Task("write", run=write)]), id=name)  # the same id: that job

    async def lines() -> AsyncIterator[str]:
        async for part in job.task("write").stream():
            told = {"missing": part.count} if isinstance(part, Dropped) else {"text": part}
            yield f"data: {json.dumps(told)}\n\n"  # JSON: no text can end the event
        outcome = await job.wait()
        yield f"event: end\ndata: {json.dumps({'state': outcome.state})}\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


async def main() -> None:
    async with lifespan(app), httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as client:
        text = ""
        async with client.stream("GET", "/stories/bear") as response:
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    text += json.loads(line.removeprefix("data:")).get("text", "")
        print(text)
        print(await (await runtime.job("bear")).published())


if __name__ == "__main__":
    anyio.run(main)
