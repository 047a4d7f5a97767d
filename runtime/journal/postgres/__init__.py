"""The journal in a PostgreSQL database, which several nodes may share.

The interface for nodes is in `runtime/journal/cluster.py`. Migrations of the database belong here, into `schema.py`.
The parts that both databases share are in `runtime/journal/`.
"""
