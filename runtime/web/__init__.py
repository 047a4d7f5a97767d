"""The board of a runtime: HTTP interface, event stream and page. Needs the extra `web`.

`read/` has the handlers that read, `write/` those that change something, `stream/` the event stream; `http/` puts them
together. In the library only the command line imports this.
"""
