"""The journal in a PostgreSQL database, which several nodes may share.

What nodes ask of it is in `runtime/journal/cluster.py`. Migrations of the database belong here, into `schema.py`. What
both databases share is in `runtime/journal/`.
"""
