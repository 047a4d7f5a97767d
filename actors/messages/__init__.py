"""Messages: commands of people, inputs of the runtime, notices, and errors of bodies.

Only the message types live here. The other folders handle them.
"""
