"""What is told of what happens: events, notices that are kept, metrics.

Who listens, and what is lost if somebody is slow, is decided here. Nothing here changes a state.
"""
