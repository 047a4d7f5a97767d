"""Specifications and machines as files: TOML, YAML and JSON, and the line of each value.

Everything here turns a file into what `actors/spec/` has, or says where it is wrong. The rules that a specification
must follow are there.
"""
