"""How a stream is compressed: not at all, or by gzip, in pieces that are compressed once for all readers.

Rules
-----
- A compressed piece refers to no other: it ends at a byte, and the next piece begins anew. So any piece can follow any
  other.
- Gzip ends with a checksum of all uncompressed bytes. It is combined from the checksums of parts, so no part is read
  again for it.
- A piece that is too short to gain from compression is stored uncompressed: that costs nothing.
"""

from __future__ import annotations

import struct
import zlib

BEGINNING = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
"""The header of every gzip stream: no name, no time, any system."""
SHORT = 1_024
"""Pieces with fewer bytes are not compressed."""
LEVEL = 3

_POLYNOMIAL = 0xEDB88320  # of CRC-32, the lowest power first
_ONE = 1 << 31


def packed(data: bytes) -> bytes:
    """A piece, compressed so that it fits into any gzip stream."""
    if len(data) < SHORT:
        return struct.pack("<BHH", 0, len(data), len(data) ^ 0xFFFF) + data  # a stored (uncompressed) block
    deflate = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return deflate.compress(data) + deflate.flush(zlib.Z_FULL_FLUSH)


def takes_gzip(accepted: str) -> bool:
    """Whether a client that sent this `Accept-Encoding` accepts gzip."""
    for one in accepted.lower().split(","):
        name, _, quality = one.partition(";")
        if name.strip() == "gzip":
            return quality.replace(" ", "") not in {"q=0", "q=0.0", "q=0.00", "q=0.000"}
    return False


class StreamChecksum:
    """The checksum and the length of a stream's bytes so far."""

    __slots__ = ("crc", "length")

    def __init__(self, crc: int = 0, length: int = 0) -> None:
        self.crc = crc
        self.length = length

    def add(self, data: bytes) -> None:
        """Add bytes that were sent."""
        self.crc = zlib.crc32(data, self.crc)
        self.length += len(data)

    def add_part(self, before: StreamChecksum, after: StreamChecksum) -> None:
        """Add the bytes that another stream sent between two moments, given its sums at these moments."""
        length = after.length - before.length
        crc = after.crc ^ _shifted(before.crc, length)
        self.crc = _shifted(self.crc, length) ^ crc
        self.length += length

    def copy(self) -> StreamChecksum:
        """A copy of the present sum."""
        return StreamChecksum(self.crc, self.length)

    def end(self) -> bytes:
        """The trailer of a gzip stream."""
        return b"\x03\x00" + struct.pack("<II", self.crc, self.length & 0xFFFFFFFF)


def _shifted(crc: int, length: int) -> int:
    """The part of a checksum that earlier bytes contribute: `crc` after `length` more zero bytes."""
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
