"""The views of a journal that people read, and those of the published documents.

Each is written once, in the words of a dialect, for SQLite and PostgreSQL. Tables do not belong here.
"""
