"""What the published documents print, in our words: the sections of their files.

Their lifecycles are in `machines/lifecycles/`, their views in `runtime/journal/views/`.
"""
