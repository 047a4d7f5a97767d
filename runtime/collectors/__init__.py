"""What collectors of others are given of a runtime: spans for OpenTelemetry, metrics for Prometheus.

Each needs its extra, and is imported by who uses it only. What is counted is in `runtime/observation/`.
"""
