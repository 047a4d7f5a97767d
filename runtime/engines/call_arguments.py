"""The arguments of a step's call as they are compared in a replay, and as an error tells them.

Rules
- Equal arguments have equal digests, whatever the order of the keys of their dicts.
- Arguments that JSON cannot hold (a client, a session) are not compared; the other arguments are.
- The code of an argument may raise anything: then JSON cannot hold that argument.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any

import msgspec

from ...actors.user_code import contained

LONGEST_SPOKEN = 200
"""Characters of the arguments of a step that an error tells."""
_encode = msgspec.json.Encoder(order="deterministic").encode


def encoded_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    """The arguments of a call as JSON; None if that cannot hold them."""
    try:
        return _encode((args, kwargs))
    except BaseException as error:  # of the code of an argument
        contained(error)
        return None


def known_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes | None:
    """The arguments of a call as JSON, with a hole for each that JSON cannot hold; None if it can hold none of them."""
    placed = [_encoded_argument(one) for one in args]
    named = {name: _encoded_argument(kwargs[name]) for name in kwargs}
    if all(one is _HOLE for one in (*placed, *named.values())):
        return None
    return _encode((placed, named))


def _encoded_argument(value: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(_encode(value))
    except BaseException as error:  # of the code of an argument
        contained(error)
        return _HOLE


_HOLE = msgspec.Raw(b'{"":null}')  # in place of an argument


def digest(call: bytes | None) -> str:
    """A digest of the arguments of a call; "" if there is no JSON of them."""
    return "" if call is None else blake2b(call, digest_size=12).hexdigest()


_NOTHING_GIVEN = digest(encoded_call((), {}))


def spoken_call(call: str, given: msgspec.Raw | None) -> str:
    """The arguments of a call for people, as a call is written. given: as they are kept, if they are."""
    if given is None:
        return "()" if call == _NOTHING_GIVEN else "arguments that are not kept"
    args, kwargs = msgspec.json.decode(given)
    said = ", ".join([*(repr(one) for one in args), *(f"{name}={one!r}" for name, one in kwargs.items())])
    return f"({said})" if len(said) <= LONGEST_SPOKEN else f"({said[:LONGEST_SPOKEN]}...)"
