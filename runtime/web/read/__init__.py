"""What is read over HTTP, and how it looks on the wire.

Handlers that answer a GET live here, and the shapes of their answers. Nothing here changes a state.
"""
