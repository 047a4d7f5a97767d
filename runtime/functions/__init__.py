"""Functions and lifecycles by their names: how a journal names them, and how the next start finds them.

Modules beside a specification, and the program's own file, are found here. Nothing here calls what it has found.
"""
