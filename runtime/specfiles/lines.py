"""The line of each value of a JSON or TOML file, which the parsers do not give.

Rules:
- Only texts that their parser has accepted are read here, so the scanners need not check the syntax.
- A place is a path as in `("tasks", 2, "retry")`; its line counts from 1. If a scanner fails to follow, a
  place is missing, and the place around it is used.
- A key that occurs twice in one JSON object gives a finding; the parser would ignore it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from ...actors.spec.schema import Path

Lines = dict[Path, int]

_JSON = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]:,]|\n|[^\s{}\[\]:,"]+')
_JSON_BETWEEN = frozenset("\n,:]}")
_TOML = re.compile(
    r'"{3}(?:[^\\]|\\.)*?"{3,5}(?!")'
    r"|'''[\s\S]*?'{3,5}(?!')"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"|\n"
    r"|[\[\]{},=.]"
    r"|[^\s\[\]{},=.\"'#]+",
    re.DOTALL,
)


def json_lines(text: str) -> tuple[Lines, list[Path]]:
    """The lines of a JSON text's values, and the places of keys that occur twice."""
    lines: Lines = {}
    doubled: list[Path] = []
    here: list[str | int | None] = []  # the place of the next value; None before a key
    line = 1
    for sign in _JSON.findall(text):
        if here and isinstance(here[-1], int) and sign not in _JSON_BETWEEN:
            lines.setdefault(_place(here), line)
        if here and here[-1] is None and sign[0] == '"':
            here[-1] = str(json.loads(sign))
            path = _place(here)
            if path in lines:
                doubled.append(path)
            lines[path] = line
            continue
        match sign:
            case "\n":
                line += 1
            case "{":
                here.append(None)
            case "[":
                here.append(0)
            case "}" | "]":
                here.pop()
            case ",":
                last = here[-1]
                here[-1] = last + 1 if isinstance(last, int) else None
            case _:
                pass
    return lines, doubled


def toml_lines(text: str) -> Lines:
    """The lines of a TOML text's values."""
    return _Toml(text).walk()


class _Toml:
    """One walk over the tokens of a TOML text."""

    def __init__(self, text: str) -> None:
        self.lines: Lines = {}
        self._signs: list[str] = [sign for sign in _TOML.findall(text) if sign[0] != "#"]
        self._at = 0
        self._line = 1
        self._arrays: dict[Path, int] = {}  # of each array: the index of the last table that `[[...]]` made

    def walk(self) -> Lines:
        table: Path = ()
        while (sign := self._peek()) is not None:
            if sign == "[":
                table = self._header()
            elif sign != "\n":
                self._pair(table)
            while self._next() not in ("\n", None):
                pass  # a date and its time are two tokens
        return self.lines

    def _peek(self) -> str | None:
        return self._signs[self._at] if self._at < len(self._signs) else None

    def _next(self) -> str | None:
        sign = self._peek()
        if sign is not None:
            self._at += 1
            self._line += sign.count("\n")
        return sign

    def _past_breaks(self) -> str | None:
        while (sign := self._peek()) == "\n":
            self._next()
        return sign

    def _header(self) -> Path:
        """Read a line of brackets. Returns the table of the pairs after it."""
        self._next()
        double = self._peek() == "["
        if double:
            self._next()
        path: Path = ()
        keys = self._keys("]")
        for number, key in enumerate(keys, 1):
            path = (*path, key)
            if double and number == len(keys):
                self.lines.setdefault(path, self._line)
                self._arrays[path] = self._arrays.get(path, -1) + 1
            if path in self._arrays:
                path = (*path, self._arrays[path])
        self.lines.setdefault(path, self._line)
        return path

    def _pair(self, table: Path) -> None:
        path = table
        for key in self._keys("="):
            path = (*path, key)
            self.lines.setdefault(path, self._line)
        self._value(path)

    def _keys(self, end: str) -> list[str]:
        keys: list[str] = []
        while (sign := self._next()) is not None and sign != end:
            if sign not in (".", "\n"):
                keys.append(_unquoted(sign))
        return keys

    def _value(self, path: Path) -> None:
        self._past_breaks()
        match self._next():
            case "[":
                self._array(path)
            case "{":
                while (sign := self._past_breaks()) not in ("}", None):
                    if sign == ",":
                        self._next()
                    else:
                        self._pair(path)
                self._next()
            case _:
                while self._peek() == ".":  # 1.5 and times with fractions are several tokens
                    self._next()
                    self._next()

    def _array(self, path: Path) -> None:
        index = 0
        while (sign := self._past_breaks()) not in ("]", None):
            if sign == ",":
                self._next()
                index += 1
            else:
                self.lines.setdefault((*path, index), self._line)
                self._value((*path, index))
        self._next()


def _place(here: Sequence[str | int | None]) -> Path:
    return tuple(step for step in here if step is not None)


def _unquoted(key: str) -> str:
    if key[0] == "'":
        return key[1:-1]
    return str(json.loads(key)) if key[0] == '"' and "\\U" not in key else key.strip('"')
