"""Drawings of machines. The pages of the documentation that are made from their tables are `machines/docs.py`'s.

A drawing is text: Mermaid, DOT or SVG. Nothing here knows an entity or a journal.
"""
