"""How a stream is packed: as it is, or by gzip, in pieces that are packed once and sent to whoever has them next.

Rules
-----
- A packed piece refers to no other: it ends at a byte, and what follows begins anew. So any piece can follow any other.
- Gzip ends with a checksum of all that was unpacked. Those of parts are joined, so nobody reads a part twice for it.
- What is too short to gain anything is put in as it is: that costs nothing.
"""

from __future__ import annotations

import struct
import zlib

BEGINNING = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""What every gzip stream begins with: no name, no time, any system."""
SHORT = 1_024
"""Bytes of a piece below which it is not compressed."""
LEVEL = 3

_POLYNOMIAL = 0xEDB88320  # of CRC-32, the lowest power first
_ONE = 1 << 31


def packed(data: bytes) -> bytes:
    """A piece, as it is put into any gzip stream."""
    if len(data) < SHORT:
        return struct.pack("<BHH", 0, len(data), len(data) ^ 0xFFFF) + data  # a block that is stored
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush(zlib.Z_FULL_FLUSH)


def takes_gzip(accepted: str) -> bool:
    """Whether a client that sent this `Accept-Encoding` takes it."""
    for one in accepted.lower().split(","):
        name, _, quality = one.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


class Sum:
    """The checksum and the length of what a stream has told so far."""

    __slots__ = ("crc", "length")

    def __init__(self, crc: int = 0, length: int = 0) -> None:
        self.crc = crc
        self.length = length

    def add(self, data: bytes) -> None:
        """That was told."""
        self.crc = zlib.crc32(data, self.crc)
        self.length += len(data)

    def add_part(self, before: Sum, after: Sum) -> None:
        """What came between two moments of another one was told."""
        length = after.length - before.length
        crc = after.crc ^ _shifted(before.crc, length)
        self.crc = _shifted(self.crc, length) ^ crc
        self.length += length

    def copy(self) -> Sum:
        """It as it is now."""
        return Sum(self.crc, self.length)

    def end(self) -> bytes:
        """What a gzip stream ends with."""
        return b"\x03\x00" + struct.pack("<II", self.crc, self.length & 0xFFFFFFFF)


def _shifted(crc: int, length: int) -> int:
    """The checksum of what has this one, with so many zeros behind it, as it counts for what stands there instead."""
    power, factor = _ONE >> 8, _ONE  # x to the 8, and x to the 0, modulo the polynomial
    while length:
        if length & 1:
            factor = _product(power, factor)
        power = _product(power, power)
        length >>= 1
    return _product(factor, crc)


def _product(one: int, other: int) -> int:
    """The product of two polynomials over one bit, modulo that of CRC-32."""
    product = 0
    while one:
        if one & _ONE:
            product ^= other
        one = one << 1 & 0xFFFFFFFF
        other = other >> 1 ^ (_POLYNOMIAL if other & 1 else 0)
    return product
