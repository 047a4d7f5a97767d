"""Count the words of a text."""

from .counting import count, top

__all__ = ["__version__", "count", "top"]

__version__ = "0+unreleased"  # tools/build.py writes the real version into the build
