"""Tasks: their attempts, what they wait for, their checks, holds and cancelling.

The delay before a retry, the loss of a worker and approvals are dealt with here. How a graph of tasks is coordinated
is in `actors/jobs/`, which worker takes a task in `actors/workers/`.
"""
