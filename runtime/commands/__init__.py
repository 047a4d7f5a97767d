"""Commands on their way to a runtime: from this program, or by the inbox of its journal, and once each.

Who says a command, and how its answer or its error comes back, is here. Handles (`runtime/handles/`), the command line
(`runtime/cli/`) and the board (`runtime/web/`) send them; what a command does is the actors' part.
"""
