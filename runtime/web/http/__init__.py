"""The board as an ASGI application: its server, checks of requests, sending of answers.

Tokens, connection limits and problems are here. The folders beside it have what a request reads or does.
"""
