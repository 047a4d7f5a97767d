"""The optional dependencies: an import that misses one says which extra of Callboard brings it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

_PACKAGES = {
    "cli": {"typer": "Typer", "rich": "Rich"},
    "yaml": {"yaml": "PyYAML"},
    "prometheus": {"prometheus_client": "prometheus-client"},
    "otel": {"opentelemetry": "OpenTelemetry"},
    "web": {"litestar": "Litestar", "uvicorn": "uvicorn"},
    "client": {"httpx": "httpx"},
    "postgres": {"psycopg": "psycopg"},
    "ray": {"ray": "Ray"},
    "pydantic-ai": {"pydantic_ai": "pydantic-ai"},
}
"""By extra, the modules that it brings, and how their packages are called."""


class ExtraMissing(ModuleNotFoundError):  # noqa: N818 - named as the other errors are
    """A package of an extra is not installed. The message has the command that installs it."""


def missing(what: str, extra: str) -> str:
    """The words for an extra that is not installed. what: that needs it, at the beginning of a sentence."""
    needed = " and ".join(_PACKAGES[extra].values())
    verb = "is" if len(_PACKAGES[extra]) == 1 else "are"
    return f"{what} needs {needed}, which {verb} not installed: pip install 'callboard[{extra}]'"


@contextmanager
def needs(what: str, extra: str) -> Generator[None]:
    """Around imports: raises ExtraMissing if a package of the extra is not installed, other errors unchanged."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _PACKAGES[extra]:
            raise
        raise ExtraMissing(missing(what, extra), name=error.name) from error
