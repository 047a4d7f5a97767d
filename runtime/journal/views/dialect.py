"""SQL dialects for a journal's views: the views are written once for SQLite and PostgreSQL.

A record is JSON in a column `record`, a chunk of transitions JSON in `transitions`. Values taken from them are texts
unless a cast makes them numbers; SQLite needs no cast, PostgreSQL does.
"""

from __future__ import annotations

from typing import Protocol


class Dialect(Protocol):
    """The SQL expressions that the views need."""

    chunks: str
    """The source of all transitions: `one`, and its chunk `c`."""
    greatest: str
    """The function that returns the greatest of its arguments."""

    def text(self, field: str, table: str) -> str:
        """A field of a record of that table; "a.b" is a field of a field. A value that is no text is shown as JSON."""
        ...

    def raw(self, field: str, table: str) -> str:
        """A field as JSON: a text is in quotes."""
        ...

    def whole(self, field: str, table: str) -> str:
        """A field as a whole number."""
        ...

    def real(self, field: str, table: str) -> str:
        """A field as a real number."""
        ...

    def texts(self, field: str, table: str) -> str:
        """A source of the texts in a record's list field, as its column `value`."""
        ...

    def json(self, text: str, field: str) -> str:
        """A field of JSON text that is not a record."""
        ...

    def number(self, value: str) -> str:
        """A value taken from JSON, as a real number."""
        ...

    def column(self, *places: int | str) -> str:
        """A column of the transition `one`, by its place in `TRANSITION_FIELDS`; further places select inside it."""
        ...

    def count(self, place: int) -> str:
        """A column of the transition `one` as a whole number."""
        ...

    def at(self, number: str, *, iso: bool) -> str:
        """A time as text, from UTC epoch seconds: in ISO 8601, or in SQLite's format."""
        ...

    def moment(self, place: int, *, iso: bool) -> str:
        """A column of the transition `one` that is a time, as text."""
        ...

    def reasoned(self, metadata: str, reason: str) -> str:
        """A JSON object as text, with its reason set; metadata: such a text, or NULL."""
        ...


class Sqlite:
    """The dialect of SQLite."""

    chunks = "transition_chunks AS c, json_each(c.transitions) AS one"
    greatest = "max"

    def text(self, field: str, table: str) -> str:
        """A field of a record."""
        return f"json_extract({table}.record, '$.{field}')"

    whole = real = text

    def raw(self, field: str, table: str) -> str:
        """A field as JSON."""
        return f"({table}.record -> '$.{field}')"

    def texts(self, field: str, table: str) -> str:
        """The texts of a list."""
        return f"json_each({table}.record, '$.{field}')"

    def json(self, text: str, field: str) -> str:
        """A field of other JSON text."""
        return f"json_extract({text}, '$.{field}')"

    def number(self, value: str) -> str:
        """A value, which is already a number."""
        return value

    def column(self, *places: int | str) -> str:
        """A column of a transition."""
        path = "".join(f"[{place}]" if isinstance(place, int) else f".{place}" for place in places)
        return f"json_extract(one.value, '${path}')"

    def count(self, place: int) -> str:
        """A column that is a number."""
        return self.column(place)

    def at(self, number: str, *, iso: bool) -> str:
        """A time as text."""
        return f"strftime('{'%Y-%m-%dT%H:%M:%fZ' if iso else '%Y-%m-%d %H:%M:%f'}', {number}, 'unixepoch')"

    def moment(self, place: int, *, iso: bool) -> str:
        """A column that is a time, as text."""
        return self.at(self.column(place), iso=iso)

    def reasoned(self, metadata: str, reason: str) -> str:
        """Metadata with their reason."""
        return f"json_set(coalesce({metadata}, '{{}}'), '$.reason', {reason})"


class Postgres:
    """The dialect of PostgreSQL. `as_json` is made with the tables."""

    chunks = "transition_chunks AS c, jsonb_array_elements(as_json(c.transitions)) AS one (value)"
    greatest = "greatest"

    def text(self, field: str, table: str) -> str:
        """A field of a record."""
        return self.json(f"{table}.record", field)

    def raw(self, field: str, table: str) -> str:
        """A field as JSON."""
        return f"(as_json({table}.record)#>'{{{field.replace('.', ',')}}}')::text"

    def whole(self, field: str, table: str) -> str:
        """A field of a record that is a whole number."""
        return f"{self.text(field, table)}::bigint"

    def real(self, field: str, table: str) -> str:
        """A field of a record that is a real number."""
        return self.number(self.text(field, table))

    def texts(self, field: str, table: str) -> str:
        """The texts of a list."""
        return f"jsonb_array_elements_text(as_json({table}.record)->'{field}') AS one (value)"

    def json(self, text: str, field: str) -> str:
        """A field of other JSON text."""
        return f"(as_json({text})#>>'{{{field.replace('.', ',')}}}')"

    def number(self, value: str) -> str:
        """A value as a number."""
        return f"{value}::double precision"

    def column(self, *places: int | str) -> str:
        """A column of a transition."""
        return f"(one.value#>>'{{{','.join(map(str, places))}}}')"

    def count(self, place: int) -> str:
        """A column that is a number."""
        return f"{self.column(place)}::bigint"

    def at(self, number: str, *, iso: bool) -> str:
        """A time as text."""
        shape = 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"' if iso else "YYYY-MM-DD HH24:MI:SS.MS"
        bounded = f"CASE WHEN {number} BETWEEN -62135596800 AND 253402300799.999 THEN {number} END"  # else it raises
        return f"to_char(to_timestamp({bounded}) AT TIME ZONE 'UTC', '{shape}')"

    def moment(self, place: int, *, iso: bool) -> str:
        """A column that is a time, as text."""
        return self.at(self.number(self.column(place)), iso=iso)

    def reasoned(self, metadata: str, reason: str) -> str:
        """Metadata with their reason."""
        return f"(coalesce(as_json({metadata}), '{{}}') || jsonb_build_object('reason', {reason}))::text"
