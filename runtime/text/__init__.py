"""Texts for people: lines of logs, tracebacks, and what is kept out of them.

Secrets are masked here, and what a terminal may not be given is taken out. What is told, and to whom, is decided in
`runtime/observation/`.
"""
