"""Secrets: values that a specification only names, masked wherever they are kept or shown.

Rules
-----
- A specification holds only names. The value is looked up when something that names it starts, in the environment or in
  the application's own source, and is given only to that body or command. It is never journaled.
- Everything that comes back from the receiver of a value is masked before it goes on: results, heartbeat details,
  errors, tracebacks, output. Output is masked while it streams, also if a value is split over two reads.
- A value is searched for as it is, and in its forms in JSON, in a Python repr, in a URL, and in base64; of a value with
  several lines each line is searched for. Each match is replaced by `MASK`. Overlapping matches become one.
- A value shorter than `SHORTEST` is refused: its mask would hide half of all other text.
- A child job, its specification and an approval that a body submits are kept under a name. They are not masked, since
  that would change them: if one contains a secret of the body, it is refused.
- If no secret is named, no code here runs.
"""

from __future__ import annotations

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
"""The number of the latest sets of values, handed out together, that are masked in notices."""
SHORTEST = 4
"""The fewest characters that a secret's value may have."""
_SHORTEST_PART = 6  # the fewest characters of a line or encoded form that is searched for

Source = Callable[[str], str | None] | Mapping[str, str]
"""Gives values by name. A function is called on the event loop, and must return at once."""


class SecretMissing(ValueError):  # noqa: N818 - the name says what is wrong
    """A needed secret has no value, or one too short to be masked. Set it, and run the task again."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)


class Mask:
    """Hides some values in texts and data. Equal sets of values share a mask: see `Secrets`."""

    def __init__(self, values: Iterable[str]) -> None:
        forms = sorted({form for value in values for form in _forms(value)}, key=len, reverse=True)
        self._forms = forms
        self._text = re.compile(f"(?=({'|'.join(map(re.escape, forms))}))")
        self._bytes = [form.encode("utf-8", "surrogatepass") for form in forms]
        self._data = re.compile(b"(?=(%s))" % b"|".join(map(re.escape, self._bytes)))

    def __repr__(self) -> str:
        return f"<Mask of {len(self._forms)} forms>"

    def text(self, text: str) -> str:
        """Mask the values in a text."""
        if not any(form in text for form in self._forms):
            return text
        parts: list[str] = []
        done = 0
        for start, end in _spans(self._text.finditer(text)):
            parts += (text[done:start], MASK)
            done = end
        return "".join(parts) + text[done:]

    def value(self, value: Any) -> Any:
        """Mask the secrets in a JSON-able value: in texts, keys, and numbers that equal one."""
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
        """Whether a JSON-able value contains one of the secrets."""
        return bool(self.value(value) != value)

    def stream(self) -> MaskedStream:
        """Make a mask for bytes that come in pieces."""
        return MaskedStream(self._bytes, self._data)


class MaskedStream:
    """Masks bytes that come in pieces. It keeps back only a possible beginning of a value."""

    def __init__(self, forms: list[bytes], pattern: re.Pattern[bytes]) -> None:
        self._forms = forms
        self._pattern = pattern
        self._longest = len(forms[0])
        self._beginnings = {form[: SHORTEST - 1] for form in forms}
        self._kept = b""
        self._masked = 0  # how many bytes at the beginning of `_kept` are masked already

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes. Returns the masked bytes that can be shown now."""
        data = self._kept + data
        cut = self._cut(data)
        shown, self._masked = self._show(data, cut)
        self._kept = data[cut:]
        return shown

    def end(self) -> bytes:
        """Return the bytes that were kept back, and are no value."""
        data, self._kept = self._kept, b""
        shown, self._masked = self._show(data, len(data))
        return shown

    def _cut(self, data: bytes) -> int:
        """Find the first possible beginning of a value that the next piece may continue."""
        for start in range(max(0, len(data) - self._longest + 1), len(data)):
            rest = data[start:]
            if len(rest) >= SHORTEST and rest[: SHORTEST - 1] not in self._beginnings:
                continue
            if any(len(form) > len(rest) and form.startswith(rest) for form in self._forms):
                return start
        return len(data)

    def _show(self, data: bytes, cut: int) -> tuple[bytes, int]:
        """Mask the bytes up to `cut`. Returns them, and how many bytes after it are masked already."""
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
    """Finds the values of secrets. source: the application's own; by default the environment."""

    def __init__(self, source: Source | None) -> None:
        self._source: Callable[[str], str | None]
        if source is None:
            self._source = os.environ.get
        else:
            self._source = source if callable(source) else source.get
        if answers_later(self._source):
            raise TypeError("secrets must be a mapping or a plain function of a name, not async and not a generator")
        self._masks: dict[frozenset[str], Mask] = {}  # by the set of values handed out together, the latest last
        self.all: Mask | None = None
        """Masks every value that was handed out, of the last `MASKS_KEPT` sets."""

    def of(self, names: Iterable[str]) -> tuple[dict[str, str], Mask]:
        """Return the values of these names, and their mask. Raises SecretMissing."""
        values = {name: self._value(name) for name in names}
        wanted = frozenset(values.values())
        kept = self._masks.get(wanted)
        mask = Mask(wanted) if kept is None else kept
        keep_last(self._masks, wanted, mask, MASKS_KEPT)
        if kept is None:
            self.all = Mask(value for hidden in self._masks for value in hidden)
        return values, mask

    def _value(self, name: str) -> str:
        try:
            value = called(self._source, name)
        except Exception as error:  # the error's text may contain the value
            raise SecretMissing(f"the secret {name!r} could not be read: {kind_name(error)}") from None
        if value is None:
            raise SecretMissing(f"there is no secret {name!r}: set that variable of the environment, or provide it")
        text = str.__str__(value) if is_a(value, str) else ""  # a subclass may override everything else
        if len(text) < SHORTEST:
            raise SecretMissing(f"the secret {name!r} must be a text of {SHORTEST} characters or more, to be masked")
        return text


def _spans(found: Iterator[re.Match[Any]], masked: int = 0) -> Iterator[tuple[int, int]]:
    """Join matches that touch into spans. `masked`: bytes at the beginning that count as a match."""
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
    """Yield the forms in which a value may appear."""
    import json  # noqa: PLC0415 - slow, and only for a secret

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
    for before in range(3):  # base64 depends on how many bytes come before
        text = b64encode(bytes(before) + data).decode()
        text = text[(0, 2, 3)[before] : 8 * (before + len(data)) // 6]
        if len(text) >= _SHORTEST_PART:
            yield text
            yield text.replace("+", "-").replace("/", "_")
