"""The board: HTTP interface, event stream and page of a runtime. Needs the extra `web`.

Handlers read by `read/`, do by `write/` and stream by `stream/`; `http/` puts them together. Nothing else of the
library imports this but the command line.
"""
