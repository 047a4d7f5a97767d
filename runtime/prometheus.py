"""Where `callboard.prometheus` was. It stays for one release."""

from .observation.prometheus import RuntimeCollector

__all__ = ["RuntimeCollector"]
