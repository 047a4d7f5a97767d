"""Texts for people: lines of logs, tracebacks, and the removal of secrets and control characters.

The receivers of these texts are chosen in `runtime/observation/`.
"""
