"""Commands to a runtime, from this program or through the inbox of its journal; each is executed once.

Their authors, keys, answers and errors are here. Handles (`runtime/handles/`), the command line (`runtime/cli/`) and
the board (`runtime/web/`) send commands; the actors execute them.
"""
