"""The stream of events over HTTP: feeds, frames, compression, and the connection.

A reader gets the past from the journal and goes on with what happens. Nothing here changes a state.
"""
