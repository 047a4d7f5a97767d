"""What is said, and by whom: commands of people, inputs of the runtime, notices, and errors of bodies.

Only the messages live here. Who handles them is in the other folders.
"""
