"""Processes of this computer: their identity, whether they run, and how to end them.

Journals name the process that owns them by this, and engines the processes of commands and workers.
"""
