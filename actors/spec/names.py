"""Which names are valid. Names of jobs, tasks and workers become file names on every system.

Two names are the same when they are equal after case folding and Unicode normalisation: some file systems
do not distinguish them, and neither do people. Names of people are compared more loosely: without spaces around and
between words, compatible forms of a letter (a full-width one), and invisible characters. They are stored as given.
"""

from __future__ import annotations

import re
import unicodedata

from ..user_code import plain_text, shown

LONGEST_NAME = 200
"""Bytes (UTF-8) of the longest name: it must fit into a file name with a suffix."""

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_-])?")
_RESERVED = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³]) *(?:\..*)?", re.IGNORECASE)
_UNSEEN = (
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f"
    "\u200b-\u200f\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
_FORBIDDEN = frozenset('/\\:*?"<>|')


def name_problem(name: str) -> str | None:
    """The reason why a name is no valid file name on some system; None if it is valid."""
    if _PLAIN_NAME.fullmatch(name) and len(name) <= LONGEST_NAME and not _RESERVED.fullmatch(name):
        return None
    if not name:
        return "is empty"
    if len(name) > LONGEST_NAME:  # before the loop over its characters
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


def message_name_problem(name: str) -> str | None:
    """The reason why a text is no name of a message; None if it is one."""
    if not name:
        return "is empty"
    if (size := len(name.encode(errors="replace"))) > LONGEST_NAME:
        return f"is {size} bytes long, and {LONGEST_NAME} is the most"
    if name != name.strip():
        return "begins or ends with a space"
    if "/" in name:
        return "holds '/', which separates the names in an address"
    return None if name.isprintable() else "holds characters that cannot be printed"


def message_name(name: object) -> str:
    """The checked name of a message. Raises TypeError and ValueError."""
    text = plain_text(name, "the name of a message")
    if problem := message_name_problem(text):
        raise ValueError(f"{shown(text, 80)} cannot be the name of a message: it {problem}")
    return text


def folded(name: str) -> str:
    """The form in which names are compared."""
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold())


def node_of(worker_id: str | None) -> str:
    """The node in the id of a worker's incarnation: "web-1" of "loop@web-1#3"; "" without a node.

    Call it only for a shared journal: a worker's own name may hold an "@".
    """
    return (worker_id or "").rpartition("#")[0].rpartition("@")[2] if "@" in (worker_id or "") else ""


def person(name: str) -> str:
    """The form in which names of people are compared: two spellings of one person give the same form."""
    seen = re.sub(_UNSEEN, "", unicodedata.normalize("NFKC", name))
    return " ".join(unicodedata.normalize("NFKC", folded(seen)).split())
