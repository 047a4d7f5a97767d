"""Where `callboard.otel` was. It stays for one release."""

from .collectors.otel import Tracing, observe

__all__ = ["Tracing", "observe"]
