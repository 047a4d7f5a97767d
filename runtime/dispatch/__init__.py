"""The dispatcher: mailboxes, receives, supervision, and the tasks that run bodies; clocks, timers and waking.

All actors run on it, those of applications and those of the library. Nothing here knows a job or a journal.
"""
