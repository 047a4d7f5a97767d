"""Processes of this computer: which one it is, whether it lives, and how it is ended.

Journals name the process that owns them by this, and engines the processes of commands and workers.
"""
