"""The interfaces to external collectors: spans for OpenTelemetry, metrics for Prometheus.

Each needs its extra, and is imported only when it is used. The values are counted in `runtime/observation/`.
"""
