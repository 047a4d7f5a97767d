"""The old place of `callboard.otel`, kept for one release."""

from .collectors.otel import Tracing, observe

__all__ = ["Tracing", "observe"]
