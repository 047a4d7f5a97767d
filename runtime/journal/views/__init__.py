"""The SQL views of a journal: those that people read, and those of the published documents.

Each is written once, on top of a dialect, for SQLite and PostgreSQL. Tables do not belong here.
"""
