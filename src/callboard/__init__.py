"""Callboard: durable, supervised long-lived jobs inside an async Python application."""
