"""Observation of a runtime: events, kept notices, metrics.

This folder decides who receives an event, and what is dropped if a receiver is slow. Nothing here changes a state.
"""
