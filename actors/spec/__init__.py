"""Specifications: the Structs of workstreams and tasks, and the checks that find their errors.

The Structs, their checks, and the limits that follow from them live here. Nothing here has a state.
`runtime/specfiles/` reads specification files.
"""
