"""What is persisted: one immutable record for each entity, and one transition as it is journaled.

A field that a restart needs belongs here. No behaviour lives here, and nothing that can be derived again.
"""
