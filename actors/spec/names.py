"""What a name may be. Names of jobs, tasks and workers end up in file names and paths of every system.

Two names are the same when they are equal after case folding and Unicode normalisation: some file systems
cannot tell them apart, and neither can people. Of the names of people less counts still: nor do spaces around and
between the words, compatible forms of a letter (a full-width one), and signs that nobody sees. They are kept as given.
"""

from __future__ import annotations

import re
import unicodedata

LONGEST_NAME = 200
"""Bytes (UTF-8) of the longest name: it must fit into a file name with a suffix."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³]) *(?:\..*)?", re.IGNORECASE)
_UNSEEN = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
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


def node_of(worker_id: str | None) -> str:
    """The node of an incarnation of a worker, of its id: "web-1" of "loop@web-1#3"; "" where none is named.

    Ask it only where the journal is shared: a worker's own name may hold an "@".
    """
    return (worker_id or "").rpartition("#")[0].rpartition("@")[2] if "@" in (worker_id or "") else ""


def person(name: str) -> str:
    """The form by which the names of people are compared: whoever is written in two ways is one person."""
    seen = _UNSEEN.sub("", unicodedata.normalize("NFKC", name))
    return " ".join(unicodedata.normalize("NFKC", folded(seen)).split())
