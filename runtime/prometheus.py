"""The old place of `callboard.prometheus`, kept for one release."""

from .collectors.prometheus import RuntimeCollector

__all__ = ["RuntimeCollector"]
