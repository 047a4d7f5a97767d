"""A runtime as one node of several that share a journal. What the database does is `journal/cluster.py`'s contract."""
