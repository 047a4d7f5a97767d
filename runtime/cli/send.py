"""`callboard send JOB[/TASK] NAME`: send a message, which a body receives by `task.receive(NAME)`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from .acting import TIMEOUT, AsJson, By, RequestId, Target, Timeout, acting
from .boards import Place
from .command_errors import CommandError
from .options import JOURNAL

Name = Annotated[str, typer.Argument(metavar="NAME", help="The name by which a body receives the message.")]
Data = Annotated[
    str | None,
    typer.Option("--data", metavar="JSON", help="Its value (default: null). - reads it."),
]


def send(
    target: Target,
    name: Name,
    *,
    data: Data = None,
    journal: Place = JOURNAL,
    by: By = None,
    request_id: RequestId = None,
    timeout: Timeout = TIMEOUT,
    as_json: AsJson = False,
) -> None:
    """Send a job, or one of its tasks only, a message. It stays until a body receives it, once."""
    from ..handles.base import sent  # noqa: PLC0415 - heavy
    from .control import job_or_task  # noqa: PLC0415
    from .reading import reading  # noqa: PLC0415

    act = acting(journal, "send", request_id=request_id, timeout=timeout, as_json=as_json)
    value = _value(data)
    with reading(journal) as reader:
        kind, address, shown = job_or_task(reader, "send", target)
    try:
        arguments = sent(name, value, act.who(by))
    except (ValueError, TypeError) as error:
        raise CommandError(f"{shown}: {error}") from None
    act.on(kind, address, shown, arguments, detail=f"message {name}")


def _value(data: str | None) -> Any:
    import sys  # noqa: PLC0415

    import msgspec  # noqa: PLC0415

    text = sys.stdin.read() if data == "-" else data
    try:
        return None if text is None else msgspec.json.decode(text)
    except (msgspec.MsgspecError, ValueError) as error:
        raise CommandError(
            f"--data takes JSON, not {text!r:.80}: {error}. A text is in quotes: --data '\"paid\"'"
        ) from None
