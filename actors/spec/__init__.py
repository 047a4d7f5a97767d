"""What users ask for: the model of workstreams and tasks, and everything that can be wrong with one.

Structs, their checks, and the limits that follow from them live here. Nothing here has a state. Files in which a
specification is written are read in `runtime/specfiles/`.
"""
