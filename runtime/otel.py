"""Where `callboard.otel` was. It stays for one release."""

from .observation.otel import Tracing, observe

__all__ = ["Tracing", "observe"]
