"""The journal in a PostgreSQL database, which several nodes may share. `cluster.py` says what they ask of it."""
