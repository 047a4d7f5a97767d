"""Drawings of machines. `machines/docs.py` generates the pages of the documentation.

A drawing is text: Mermaid, DOT or SVG. Nothing here reads an entity or a journal.
"""
