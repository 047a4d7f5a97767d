"""Specifications and machines as files: TOML, YAML and JSON, and the line of each value.

The modules here turn a file into the Structs of `actors/spec/`, or report its faults. The rules of a specification
are in `actors/spec/`.
"""
