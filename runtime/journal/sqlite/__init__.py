"""The journal in one SQLite file: its tables, its commits, its reader, its lock and its copies.

Migrations of the file belong here, into `migrations.py`. What both databases share is in `runtime/journal/`.
"""
