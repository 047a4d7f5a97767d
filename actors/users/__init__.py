"""What applications derive their own actors from: actors, references, strategies, dead letters, and their errors.

Only what the code of applications sees, and what an actor asks of its dispatcher (`host.py`), lives here. The
dispatcher itself is in `runtime/dispatch/`.
"""
