"""Secrets: values that a specification names and does not hold, and the masking of them in all that is kept or told.

Rules
-----
- A specification says names only. A value is asked for when something that names it starts, from the environment or
  from the application's own source, and is handed to that body or command alone. It is never journaled.
- What comes back from whoever was handed a value is masked before it goes anywhere: results, heartbeat details, errors,
  tracebacks, output. Output is masked while it streams, also where a value is split over two reads.
- A value is looked for as it is, and as it looks in JSON, in a Python repr, in a URL, and in base64; of one with
  several lines each line counts. What is found is replaced by `MASK`. Overlapping finds are one.
- A value shorter than `SHORTEST` is refused: masking it would mask half of everything else.
- What a body hands over to be kept under a name (a child job and its specification, an approval) is not masked, since
  then it would be something else: where it holds a secret that the body was handed it is refused.
- Where no secret is named, nothing here runs.
"""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import quote, quote_plus

from ...actors.kernel.recent import keep_last
from ...actors.user_code import called, is_a, kind_name
from ...machines.machine import answers_later

MASK = "***"
MASKS_KEPT = 1_000
"""So many sets of values that were handed out together are hidden in notices, the latest."""
SHORTEST = 4
"""Characters that a secret's value must have."""
_SHORTEST_PART = 6  # characters of a line or an encoded form that is looked for by itself

Source = Callable[[str], str | None] | Mapping[str, str]
"""Where values come from, by their names. A function is called on the event loop and must answer at once."""


class SecretMissing(ValueError):  # noqa: N818 - it says what is the matter
    """A secret that is needed has no value, or one too short to be masked. Set it, and run the task again."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class Mask:
    """Hides some values. Equal values make one mask: see `Secrets`."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = sorted({form for value in values for form in _forms(value)}, key=len, reverse=True)
        self._forms = forms
        self._text = re.compile(f"(?=({'|'.join(map(re.escape, forms))}))")
        self._bytes = [form.encode("utf-8", "surrogatepass") for form in forms]
        self._data = re.compile(b"(?=(%s))" % b"|".join(map(re.escape, self._bytes)))

    def __repr__(self) -> str:
        return f"<Mask of {len(self._forms)} forms>"

    def text(self, text: str) -> str:
        """The text without the values."""
        if not any(form in text for form in self._forms):
            return text
        parts: list[str] = []
        done = 0
        for start, end in _spans(self._text.finditer(text)):
            parts += (text[done:start], MASK)
            done = end
        return "".join(parts) + text[done:]

    def value(self, value: Any) -> Any:
        """A JSON-able value without the secrets: texts, keys, and numbers that are one."""
        kind: type[Any] = value.__class__
        if isinstance(value, str):
            return self.text(value)
        if kind is bool or value is None:
            return value
        if issubclass(kind, int | float):
            return MASK if str(value) in self._forms else value
        if issubclass(kind, dict):
            return {self.text(str(key)): self.value(one) for key, one in value.items()}
        if issubclass(kind, list | tuple):
            several = [self.value(one) for one in value]
            return several if issubclass(kind, list) else tuple(several)
        return value

    def finds(self, value: Any) -> bool:
        """Whether a JSON-able value holds one of the secrets."""
        return bool(self.value(value) != value)

    def stream(self) -> MaskedStream:
        """Masks bytes that come in pieces."""
        return MaskedStream(self._bytes, self._data)


class MaskedStream:
    """Bytes that come in pieces, without the values. Keeps back only what may be the beginning of one."""

    def __init__(self, forms: list[bytes], pattern: re.Pattern[bytes]) -> None:
        self._forms = forms
        self._pattern = pattern
        self._longest = len(forms[0])
        self._beginnings = {form[: SHORTEST - 1] for form in forms}
        self._kept = b""
        self._masked = 0  # so many bytes at the beginning of `_kept` are masked already

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes; returns what may be shown of all so far."""
        data = self._kept + data
        cut = self._cut(data)
        shown, self._masked = self._show(data, cut)
        self._kept = data[cut:]
        return shown

    def end(self) -> bytes:
        """What was kept back and was no value after all."""
        data, self._kept = self._kept, b""
        shown, self._masked = self._show(data, len(data))
        return shown

    def _cut(self, data: bytes) -> int:
        """Where the first beginning of a value stands that may go on in the next piece."""
        for start in range(max(0, len(data) - self._longest + 1), len(data)):
            rest = data[start:]
            if len(rest) >= SHORTEST and rest[: SHORTEST - 1] not in self._beginnings:
                continue
            if any(len(form) > len(rest) and form.startswith(rest) for form in self._forms):
                return start
        return len(data)

    def _show(self, data: bytes, cut: int) -> tuple[bytes, int]:
        """The masked bytes up to `cut`, and how many after it belong to something that is masked already."""
        if not cut:
            return b"", self._masked
        if not self._masked and not any(form in data for form in self._forms):
            return data[:cut], 0
        parts: list[bytes] = []
        done, over = self._masked, 0
        for start, end in _spans(self._pattern.finditer(data), self._masked):
            if start >= cut:
                break
            if start or not self._masked:
                parts += (data[done:start], MASK.encode())
            done = end
            over = max(0, end - cut)
        if done < cut:
            parts.append(data[done:cut])
        return b"".join(parts), over


class Secrets:
    """Finds the values of secrets. source: the application's own (by default the program's environment)."""

    def __init__(self, source: Source | None) -> None:
        self._source: Callable[[str], str | None]
        if source is None:
            self._source = os.environ.get
        else:
            self._source = source if callable(source) else source.get
        if answers_later(self._source):
            raise TypeError("secrets is a mapping or a plain function of a name, and neither async nor a generator")
        self._masks: dict[frozenset[str], Mask] = {}  # by the values that were handed out together, the latest last
        self.all: Mask | None = None
        """Hides every value that was handed out so far, of the last `MASKS_KEPT` that were handed out together."""

    def of(self, names: Iterable[str]) -> tuple[dict[str, str], Mask]:
        """The values of these names, and what hides them. Raises SecretMissing."""
        values = {name: self._value(name) for name in names}
        wanted = frozenset(values.values())
        known = self._masks.get(wanted)
        mask = Mask(wanted) if known is None else known
        keep_last(self._masks, wanted, mask, MASKS_KEPT)
        if known is None:
            self.all = Mask(value for hidden in self._masks for value in hidden)
        return values, mask

    def _value(self, name: str) -> str:
        try:
            value = called(self._source, name)
        except Exception as error:  # its text may hold what must not be told
            raise SecretMissing(f"the secret {name!r} could not be had: {kind_name(error)}") from None
        if value is None:
            raise SecretMissing(f"there is no secret {name!r}: set that variable of the environment, or provide it")
        text = str.__str__(value) if is_a(value, str) else ""  # a subclass may lie about all else
        if len(text) < SHORTEST:
            raise SecretMissing(f"the secret {name!r} is no text of {SHORTEST} characters or more: it cannot be masked")
        return text


def _spans(found: Iterator[re.Match[Any]], masked: int = 0) -> Iterator[tuple[int, int]]:
    """What was found, from where to where, those that touch as one. `masked`: the beginning, which counts as found."""
    start, end = (0, masked) if masked else (-1, -1)
    for match in found:
        first, last = match.span(1)
        if first > end:
            if end >= 0:
                yield start, end
            start = first
        end = max(end, last)
    if end >= 0:
        yield start, end


def _forms(value: str) -> Iterator[str]:
    """How a value may look where it comes up."""
    yield value
    parts = [value, *(line.strip() for line in value.splitlines())]
    for part in parts:
        if part != value and len(part) < _SHORTEST_PART:
            continue
        yield part
        yield json.dumps(part)[1:-1]
        yield json.dumps(part, ensure_ascii=False)[1:-1]
        yield repr(part)[1:-1]
        yield quote(part, safe="", errors="replace")
        yield quote(part, errors="replace")
        yield quote_plus(part, errors="replace")
    data = value.encode("utf-8", "surrogatepass")
    for before in range(3):  # bytes that may stand before it in what was encoded as a whole
        text = b64encode(bytes(before) + data).decode()
        text = text[(0, 2, 3)[before] : 8 * (before + len(data)) // 6]
        if len(text) >= _SHORTEST_PART:
            yield text
            yield text.replace("+", "-").replace("/", "_")
