"""Tasks: their attempts, their waiting states, their checks, holds and cancelling.

This folder computes the delay before a retry, and handles lost workers and approvals. The coordination of a graph of
tasks is in `actors/jobs/`, the choice of a worker for a task in `actors/workers/`.
"""
