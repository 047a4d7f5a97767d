"""Where `callboard.prometheus` was. It stays for one release."""

from .collectors.prometheus import RuntimeCollector

__all__ = ["RuntimeCollector"]
