"""Base classes for applications: actors, references, strategies, dead letters, and their errors.

Only what an application's code uses, and what an actor needs of its dispatcher (`host.py`), lives here. The
dispatcher itself is in `runtime/dispatch/`.
"""
