"""Text from elsewhere as a terminal may have it: names, reasons, errors and output are not to be trusted.

Rules
-----
- Nothing that we print holds a control character but line ends and tabs: it could move the cursor, change the title, or
  write over what others said. Nor what turns the direction of writing, nor half a character that no encoding has.
- Each is shown as its escape (`\\x1b`), so that nothing is lost or hidden.
- In JSON a control character is written as JSON's own escape: it means the same, and is none on a terminal.
"""

from __future__ import annotations

import re
from typing import Any

_BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_BAD_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text, with escapes in place of what no terminal should get."""
    return text if text.isascii() and text.isprintable() else _BAD.sub(_escape, text)


def printable_json(encoded: bytes) -> str:
    """The same for JSON that is encoded already."""
    text = encoded.decode()
    return text if text.isascii() and "\x7f" not in text else _BAD_IN_JSON.sub(_escape_json, text)


def printable_value(value: Any) -> Any:
    """The same for a value that may be a text; others are left as they are."""
    return printable(value) if isinstance(value, str) else value


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}"


def _escape_json(found: re.Match[str]) -> str:
    return f"\\u{ord(found[0]):04x}"
