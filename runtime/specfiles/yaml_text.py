"""YAML for specification files: plain data with lines, and bounded aliases.

Rules:
- The file is read event by event, with a stack of our own: its depth and its aliases exhaust neither the
  interpreter's stack nor its memory. An alias stands for the value of its anchor, and counts all values of it towards a
  limit, so that a small file cannot expand to a huge one.
- Only the types of the safe loader. Merge keys (`<<`) are understood; explicit keys override merged ones.
- A key that occurs twice gives a finding; a second document is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...actors.spec.schema import MOST_FINDINGS, Finding, Path, short, where
from .lines import Lines

_MOST_VALUES = 1_000_000  # as many as a file in another format may hold
_DEEPEST = 100
_LONGEST_NUMBER = 400  # characters of a number or a date
_TEXTS = ("tag:yaml.org,2002:str", "tag:yaml.org,2002:value")
_COLLECTIONS = (None, "!", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_MERGE = "tag:yaml.org,2002:merge"


class YamlProblem(ValueError):  # noqa: N818 - a finding that ends the reading
    """The text is not valid YAML for a specification. `line` counts from 1."""

    def __init__(self, message: str, line: int | None) -> None:
        self.line = line
        super().__init__(message)


class _Open:
    """A mapping or list that is being read."""

    def __init__(self, path: Path, anchor: str | None, values_before: int, *, is_list: bool) -> None:
        self.is_list = is_list
        self.items: list[Any] = []
        self.pairs: dict[Any, Any] = {}
        self.path = path
        self.anchor = anchor
        self.values_before = values_before
        self.key: Any = None
        self.has_key = False
        self.merging = False  # the key read last is `<<`
        self.merged: list[dict[Any, Any]] = []


class _Merge:
    """The value of the key `<<`."""


def load(text: str) -> tuple[Any, Lines, list[Finding]]:
    """Read a YAML text: its data, the line of each place, and keys that occur twice. Raises YamlProblem."""
    import yaml  # noqa: PLC0415 - an extra, and not needed for the other formats

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Reader(yaml).read(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        column = f", column {mark.column + 1}" if mark is not None else ""
        raise YamlProblem(f"{error.problem or error.context}{column}", mark.line + 1 if mark else None) from None
    except yaml.YAMLError as error:
        raise YamlProblem(str(error).splitlines()[0], None) from None


class _Reader:
    def __init__(self, yaml: Any) -> None:  # the module, which is an optional dependency, so it is not imported above
        self._yaml = yaml
        self._scalars: Any = yaml.SafeLoader("")
        self._anchors: dict[str, tuple[Any, int]] = {}  # the value, and the number of values in it
        self._values = 0
        self._root: Any = None
        self._stack: list[_Open] = []
        self.lines: Lines = {}
        self.findings: list[Finding] = []

    def read(self, events: Iterator[Any]) -> tuple[Any, Lines, list[Finding]]:
        documents = 0
        for event in events:
            match type(event).__name__:
                case "DocumentStartEvent":
                    documents += 1
                    if documents > 1:
                        raise self.problem(event, "a second document begins; a specification is one document")
                case "MappingStartEvent":
                    self._begin(event, is_list=False)
                case "SequenceStartEvent":
                    self._begin(event, is_list=True)
                case "MappingEndEvent" | "SequenceEndEvent":
                    self._end(event)
                case "ScalarEvent":
                    self._count(event, 1)
                    value = self._scalar(event)
                    if event.anchor:
                        self._anchors[event.anchor] = (value, 1)
                    self._put(event, value)
                case "AliasEvent":
                    self._alias(event)
                case _:
                    pass
        return self._root, self.lines, self.findings

    def problem(self, event: Any, message: str) -> YamlProblem:
        return YamlProblem(message, event.start_mark.line + 1)

    def _count(self, event: Any, values: int) -> None:
        self._values += values
        if self._values > _MOST_VALUES:
            raise self.problem(
                event,
                f"this file expands to more than {_MOST_VALUES:,} values, counting those of each alias",
            )

    def _begin(self, event: Any, *, is_list: bool) -> None:
        if len(self._stack) >= _DEEPEST:
            raise self.problem(event, f"nested more than {_DEEPEST} levels deep")
        if event.tag not in _COLLECTIONS:
            raise self.problem(event, f"the tag {event.tag} is not known here")
        self._count(event, 1)
        self._stack.append(_Open(self._place(event), event.anchor, self._values, is_list=is_list))

    def _end(self, event: Any) -> None:
        done = self._stack.pop()
        for more in done.merged:
            for key, value in more.items():
                done.pairs.setdefault(key, value)
        data: Any = done.items if done.is_list else done.pairs
        if done.anchor:
            self._anchors[done.anchor] = (data, self._values - done.values_before + 1)
        self._put(event, data)

    def _alias(self, event: Any) -> None:
        if any(opened.anchor == event.anchor for opened in self._stack):
            raise self.problem(event, f"the alias *{event.anchor} is inside of its own anchor")
        if event.anchor not in self._anchors:
            raise self.problem(event, f"the alias *{event.anchor} has no anchor &{event.anchor} before it")
        value, size = self._anchors[event.anchor]
        self._count(event, size)
        self._put(event, value)

    def _scalar(self, event: Any) -> Any:
        implicit = event.implicit
        tag = event.tag
        if tag is None or tag == "!":
            tag = self._scalars.resolve(self._yaml.ScalarNode, event.value, implicit)
        if tag == _MERGE:
            return _Merge()
        if tag in _TEXTS:
            return event.value
        if len(event.value) > _LONGEST_NUMBER:  # parsing a number in base 60 takes quadratic time
            raise self.problem(event, f"{event.value[:60]!r}... is too long for a number or a date; put text in quotes")
        none = f"{event.value[:60]!r} is no {tag.rpartition(':')[2]}; put text in quotes, without a tag"
        if tag in _NUMBERS and not event.value.isascii():  # YAML has the digits 0 to 9, Python those of all scripts
            raise self.problem(event, none)
        node = self._yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark)
        try:
            return self._scalars.construct_object(node)
        except ValueError as error:
            raise self.problem(event, f"{event.value[:60]!r} cannot be read: {error}") from None
        except (LookupError, AttributeError):  # the reader of YAML assumes that a tagged value has the right form
            raise self.problem(event, none) from None
        finally:
            self._scalars.constructed_objects.clear()

    def _place(self, event: Any) -> Path:
        """The place of the value that begins now."""
        if not self._stack:
            return ()
        top = self._stack[-1]
        if top.is_list:
            path = (*top.path, len(top.items))
        elif top.has_key:
            return (*top.path, str(top.key))
        else:
            return top.path
        self.lines.setdefault(path, event.start_mark.line + 1)
        return path

    def _put(self, event: Any, value: Any) -> None:
        """Put a complete value into the open mapping or list."""
        if not self._stack:
            self._root = value
            return
        top = self._stack[-1]
        if top.is_list:
            self._place(event)
            top.items.append(value)
        elif not top.has_key:
            self._key(event, top, value)
        else:
            if top.merging:
                self._merge(event, top, value)
            else:
                top.pairs[top.key] = value
            top.has_key = top.merging = False

    def _key(self, event: Any, top: _Open, key: Any) -> None:
        if isinstance(key, _Merge):
            top.merging = top.has_key = True
            top.key = "<<"
            return
        if isinstance(key, dict | list):
            raise self.problem(event, "a key must be one word, not a mapping or a list")
        line = event.start_mark.line + 1
        path = (*top.path, str(key))
        if key in top.pairs and len(self.findings) < MOST_FINDINGS:
            self.findings.append(Finding(where(path), f"the key {short(key)} is here twice", "keep one", line))
        self.lines[path] = line
        top.key = key
        top.has_key = True
        top.pairs.setdefault(key, None)

    def _merge(self, event: Any, top: _Open, value: Any) -> None:
        several: list[Any] = value if _is(value, list) else [value]
        if not all(_is(one, dict) for one in several):
            raise self.problem(event, "<< takes a mapping, or a list of mappings")
        top.merged.extend(several)


def _is(value: object, kind: type) -> bool:
    return isinstance(value, kind)
