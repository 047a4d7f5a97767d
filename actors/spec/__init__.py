"""Specifications: the Structs of workstreams and tasks, and the checks that find their errors.

The Structs, their checks, the lifecycles that they may name, and the limits that follow from them live here. Nothing
here has a state, but the table of known lifecycles.
`runtime/specfiles/` reads specification files.
"""
