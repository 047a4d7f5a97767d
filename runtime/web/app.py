"""The board as an ASGI application.

    app = board(runtime)

Rules
-----
- It opens and closes nothing: the runtime is the application's, which mounts this wherever it likes, at any prefix.
- Nothing is served from elsewhere: the page and all that belongs to it lie in `page/`.
- Where a handler is added: in the list of its module, and that in `_HANDLERS`. It asks for `board: TheBoard` and
  `caller: TheCaller`; one that speaks ASGI itself finds the board by `board_of(scope)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from litestar import Litestar
from litestar.datastructures import State
from litestar.di import Provide

from . import health, jobs, tasks
from .access import caller_of, scope_needed
from .assets import serving
from .context import Board
from .problems import answer

if TYPE_CHECKING:
    from litestar.types import ASGIApp

    from ..runtime import Runtime

_HANDLERS = [*jobs.HANDLERS, *tasks.HANDLERS, *health.HANDLERS]


def board(runtime: Runtime, *, commands: bool = False, page: bool = True) -> ASGIApp:
    """The board of a runtime, as an ASGI application. commands: whether commands may come over HTTP."""
    given = Board(runtime, commands=commands)

    async def the_board() -> Board:
        return given

    files = [serving()] if page else []
    return Litestar(
        [*_HANDLERS, *files],
        dependencies={"board": Provide(the_board), "caller": Provide(caller_of, sync_to_thread=False)},
        state=State({"board": given}),
        guards=[scope_needed],
        exception_handlers={Exception: answer},
        openapi_config=None,
    )
