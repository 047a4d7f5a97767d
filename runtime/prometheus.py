"""The old place of `callboard.prometheus`, kept for one release: importing it warns."""

from warnings import warn

from .extras import needs

with needs("callboard.prometheus", "prometheus"):
    from .collectors.prometheus import RuntimeCollector

__all__ = ["RuntimeCollector"]

warn("callboard.runtime.prometheus is callboard.prometheus now: import it from there", DeprecationWarning, stacklevel=2)
