"""A runtime's metrics and spans for OpenTelemetry. Needs the extra `otel`.

Rules
-----
- The names are `__all__`, and a test pins them.
"""

from .runtime.extras import needs

with needs("callboard.otel", "otel"):
    from .runtime.collectors.otel import Tracing, observe

__all__ = ["Tracing", "observe"]
