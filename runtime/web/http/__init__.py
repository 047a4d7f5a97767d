"""The board as an ASGI application: its server, what every request passes, and how answers are sent.

Tokens, limits of connections and problems are here. What a request reads or does is in the folders beside it.
"""
