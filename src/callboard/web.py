"""The board as an ASGI application: HTTP interface, event stream and page of a runtime. Needs the extra `web`.

Rules
-----
- The names are `__all__`, and a test pins them. In Callboard, only `callboard serve` imports it.
"""

from .runtime.extras import needs

with needs("callboard.web", "web"):
    from .runtime.web.http.access import Token
    from .runtime.web.http.app import board

__all__ = ["Token", "board"]
