"""The sections of specification files in the words of the published documents.

Their lifecycles are in `machines/lifecycles/`, their views in `runtime/journal/views/`.
"""
