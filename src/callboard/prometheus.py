"""A runtime's metrics for Prometheus: a collector to register. Needs the extra `prometheus`.

Rules
-----
- The names are `__all__`, and a test pins them.
"""

from .runtime.extras import needs

with needs("callboard.prometheus", "prometheus"):
    from .runtime.collectors.prometheus import RuntimeCollector

__all__ = ["RuntimeCollector"]
