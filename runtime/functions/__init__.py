"""Functions and lifecycles by name: their stored names, and how a restart finds them again.

Modules beside a specification, and the program's own file, are found here. Nothing here calls the functions.
"""
