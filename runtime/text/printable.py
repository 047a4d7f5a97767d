"""Safe text for a terminal: names, reasons, errors and output may contain anything.

Rules
-----
- Printed text holds no control characters but line ends and tabs: others could move the cursor, change the title, or
  overwrite other text. It holds no characters that turn the direction of writing, and no lone surrogates.
- Each such character is shown as its escape (`\\x1b`), so that nothing is lost or hidden.
- In JSON a control character is written as JSON's own escape: it means the same, and is harmless on a terminal.
"""

from __future__ import annotations

import re
from typing import Any

_BAD = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
_BAD_IN_JSON = "[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
# Compiled when first used: few programs need them, and it takes half a millisecond.


def printable(text: str) -> str:
    """Replace the characters that a terminal should not get by escapes."""
    return text if text.isascii() and text.isprintable() else re.sub(_BAD, _escape, text)


def printable_json(encoded: bytes) -> str:
    """Replace the characters in encoded JSON that a terminal should not get by escapes."""
    text = encoded.decode()
    return text if text.isascii() and "\x7f" not in text else re.sub(_BAD_IN_JSON, _escape_json, text)


def printable_value(value: Any) -> Any:
    """Make a text printable; return other values unchanged."""
    return printable(value) if isinstance(value, str) else value


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def _escape_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
