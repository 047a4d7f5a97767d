"""The stream of events over HTTP: feeds, frames, compression, and the connection.

A reader gets past events from the journal and then follows new ones. Nothing here changes a state.
"""
