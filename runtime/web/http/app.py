"""The board as an ASGI application.

    app = board(runtime)

Rules
-----
- It opens and closes nothing: the runtime belongs to the application, which mounts this board at any prefix.
- The page loads nothing from other servers: all its files are in `page/`.
- A new handler goes into the list of its module, and a new module into `_MODULES`. A handler has the parameters
  `board: TheBoard` and `caller: TheCaller`; one that speaks ASGI itself finds the board by `board_of(scope)`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from litestar import Litestar, Request, Response
from litestar.di import Provide
from litestar.exceptions import MissingDependencyException

from ..read import (
    approvals,
    breakers,
    health,
    jobs,
    machines,
    me,
    notices,
    owed,
    tasks,
    transitions,
    workers,
)
from ..read import messages as unread
from ..stream import events, text
from ..write import creating, messages, posts
from .access import Caller, Token, Tokens, caller_of, scope_needed
from .assets import serving
from .context import Board, board_of
from .described import describing
from .gate import Application, RequestGate
from .problems import answer
from .queries import check_query
from .sending import HandlerResponse

if TYPE_CHECKING:
    from ...runtime import Runtime

LARGEST = 1_000_000
"""Bytes of the largest request body, if its handler sets no other limit."""
with suppress(MissingDependencyException):
    # An application of the framework imports pydantic if it is installed. That is slow, so it is done before a loop
    # runs.
    import_module("litestar.plugins.pydantic")
_MODULES = (
    me, jobs, unread, tasks, approvals, workers, breakers, machines, notices, owed, transitions, health, posts,
    messages, creating, events, text,
)  # fmt: skip
HANDLERS = [handler for module in _MODULES for handler in module.HANDLERS]


def board(
    runtime: Runtime,
    *,
    tokens: Sequence[Token] = (),
    hosts: Sequence[str] = (),
    commands: bool = False,
    page: bool = True,
    clock: Callable[[], float] = time.monotonic,
) -> Application:
    """The board of a runtime, as an ASGI application for asyncio.

    tokens: the allowed tokens; without any, only this machine is answered. hosts: the names of this board, beside
    "localhost" and its addresses; if there are tokens and no hosts, any name is accepted. commands: whether submitted
    jobs may hold commands, and name functions by import paths: their senders can then run anything. page: whether the
    page is served. clock: monotonic seconds.
    """
    return RequestGate(_application(page), Board(runtime, commands=commands), Tokens(tokens, clock), hosts)


async def _the_board(request: Request[Any, Any, Any]) -> Board:
    return board_of(request.scope)


async def _the_caller(request: Request[Any, Any, Any]) -> Caller:
    return caller_of(request.scope)


async def _before(request: Request[Any, Any, Any]) -> Response[None] | None:
    scope_needed(request)
    check_query(request)
    return _options(request) if request.method == "OPTIONS" else None


def _options(request: Request[Any, Any, Any]) -> Response[None]:
    """Answer with the methods of a path. The framework's own answer has only the first module's."""
    path = request.scope["path_template"]
    methods = {str(one) for route in request.app.routes if route.path_format == path for one in route.methods}
    return Response(None, status_code=204, headers={"Allow": ", ".join(sorted(methods))}, media_type="text/plain")


@cache
def _application(page: bool) -> Litestar:
    """Make the application, once for all boards: the gate names the board. It takes a tenth of a second."""
    return Litestar(
        [*HANDLERS, describing(HANDLERS), *([serving()] if page else [])],
        dependencies={"board": Provide(_the_board), "caller": Provide(_the_caller)},
        before_request=_before,
        response_class=HandlerResponse,
        exception_handlers={Exception: answer},
        request_max_body_size=LARGEST,
        openapi_config=None,  # `described.py` makes it
        logging_config=None,  # the program configures its logs itself
    )
