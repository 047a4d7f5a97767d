"""What is done over HTTP: the table of actions, what is posted, and the key of a request.

Handlers that answer a POST live here. Each sends a command by `runtime/commands/` or a handle, and decides nothing.
"""
