"""The old place of `callboard.otel`, kept for one release: importing it warns."""

from warnings import warn

from .extras import needs

with needs("callboard.otel", "otel"):
    from .collectors.otel import Tracing, observe

__all__ = ["Tracing", "observe"]

warn("callboard.runtime.otel is callboard.otel now: import it from there", DeprecationWarning, stacklevel=2)
