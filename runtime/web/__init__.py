"""The board: HTTP interface, event stream and page of a runtime. Needs the extra `web`."""
