"""Reading over HTTP: the handlers of GET requests, and the shapes of their answers.

Nothing here changes a state.
"""
