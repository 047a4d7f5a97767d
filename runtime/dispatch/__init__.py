"""The dispatcher: mailboxes, receives, supervision, and the tasks that run bodies; clocks, timers and waking.

All actors run on it, those of applications and those of the library. No module here may import a job or a journal.
"""
