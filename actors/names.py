"""What a name may be. Names of jobs, tasks and workers end up in file names and paths of every system.

Two names are the same when they are equal after case folding and Unicode normalisation: some file systems
cannot tell them apart, and neither can people.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST_NAME = 200
"""Bytes (UTF-8) of the longest name: it must fit into a file name with a suffix."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³]) *(?:\..*)?", re.IGNORECASE)
_FORBIDDEN = frozenset('/\\:*?"<>|')


def name_problem(name: str) -> str | None:
    """Say why a name cannot be the name of a file on every system, or None if it can."""
    if _PLAIN_NAME.fullmatch(name) and len(name) <= LONGEST_NAME and not _RESERVED.fullmatch(name):
        return None
    if not name:
        return "is empty"
    if len(name) > LONGEST_NAME:  # before each of its characters is looked at
        return f"is {len(name.encode(errors='replace'))} bytes long, and {LONGEST_NAME} is the most"
    if bad := next((sign for sign in name if sign in _FORBIDDEN or not sign.isprintable()), None):
        return f"holds {bad!a}, which cannot stand in a file name"
    if name[0] == " " or name[-1] in " .":
        return "begins with a space, or ends with a space or a dot, which file names lose"
    if _RESERVED.fullmatch(name):
        return "is reserved for a device on Windows"
    if (size := len(name.encode())) > LONGEST_NAME:
        return f"is {size} bytes long, and {LONGEST_NAME} is the most"
    return None


def folded(name: str) -> str:
    """The form by which names are compared."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())
