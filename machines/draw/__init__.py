"""Drawings of machines, and the pages of the documentation that are made from their tables.

A drawing is text: Mermaid, DOT or SVG. Nothing here knows an entity or a journal.
"""
