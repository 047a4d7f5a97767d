"""Actions over HTTP: their table, the handlers of POST requests, and the request's key.

Each handler sends a command by `runtime/commands/` or a handle, and decides nothing.
"""
