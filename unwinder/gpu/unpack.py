"""Unpack the beginning of an image of a fat binary: LZ4 blocks, Zstandard frames.

In: the first bytes of a packed image. Out: the first bytes of the image. Names of kernels come
first in it, so a few kilobytes of megabytes are unpacked. LZ4 is decoded here: no library for it
stops early. Zstandard is decoded by pyarrow, which the windows need anyway.
"""

from __future__ import annotations

from rankscope.probes.base.errors import RankscopeError
from rankscope.unwinder.gpu.fatbin import LZ4, STORED, ZSTD

_SHORTEST_MATCH = 4
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# A decoder of Zstandard allocates the window that a frame declares. The compiler declares the size
# of the image where that is less than 8 MB.
_MAX_WINDOW_BYTES = 64 << 20


class NotUnpacked(RankscopeError):
    """An image could not be unpacked."""

    help = "Kernels that are only in this image have no names; all else is named."


def unpack(data: bytes, packing: str, most_bytes: int) -> bytes:
    """Unpack at most `most_bytes` of an image from its first bytes `data`. Raises NotUnpacked.

    `packing`: STORED, LZ4 or ZSTD.
    """
    if packing == STORED:
        return data[:most_bytes]
    if packing == LZ4:
        return unpack_lz4(data, most_bytes)
    if packing == ZSTD:
        return unpack_zstd(data, most_bytes)
    raise NotUnpacked(f"images packed as {packing} are not known")


def unpack_lz4(block: bytes, most_bytes: int) -> bytes:
    """Decode the first `most_bytes` of an LZ4 block, fewer where it ends. Raises NotUnpacked.

    A block is a row of sequences: a token (the lengths of both parts), literal bytes, and a match:
    the distance and length of earlier bytes to repeat.
    """
    out = bytearray()
    at, end = 0, len(block)
    while at < end and len(out) < most_bytes:
        token = block[at]
        literals, at = _length(block, at + 1, token >> 4)
        out += block[at : at + literals]
        at += literals
        if at + 2 > end:
            break
        distance = block[at] | block[at + 1] << 8
        length, at = _length(block, at + 2, token & 15)
        begin = len(out) - distance
        if not distance or begin < 0:
            raise NotUnpacked("a broken LZ4 block")
        length = min(length + _SHORTEST_MATCH, max(most_bytes - len(out), 0))
        piece = out[begin : begin + length]
        out += piece * (length // distance) + piece[: length % distance] if length > distance else piece
    return bytes(out[:most_bytes])


def _length(block: bytes, at: int, length: int) -> tuple[int, int]:
    """Decode a length of an LZ4 sequence; return it and the position after it.

    `length`: the four bits of the token; 15 continues in bytes from `at` until one is not 255.
    """
    if length == 15:
        while at < len(block):
            length += block[at]
            at += 1
            if block[at - 1] != 255:
                break
    return length, at


def unpack_zstd(frame: bytes, most_bytes: int) -> bytes:
    """Decode the first `most_bytes` of a Zstandard frame, fewer where it ends or breaks.

    A block that is cut off in `frame` (up to 128 KB) is left out whole. Raises NotUnpacked where it is no such
    frame or needs too much memory, and where pyarrow is not installed.
    """
    if _zstd_window_bytes(frame) > _MAX_WINDOW_BYTES:
        raise NotUnpacked("a Zstandard frame that needs too much memory")
    try:
        import pyarrow
    except ImportError as error:
        raise NotUnpacked("pyarrow, which unpacks Zstandard, is not installed") from error
    out = bytearray()
    try:
        with pyarrow.CompressedInputStream(pyarrow.BufferReader(frame), "zstd") as stream:
            while len(out) < most_bytes and (piece := stream.read(most_bytes - len(out))):
                out += piece
    except (OSError, pyarrow.ArrowException):
        pass  # broken, or cut within a block
    return bytes(out)


def _zstd_window_bytes(frame: bytes) -> int:
    """Return the memory in bytes that decoding a Zstandard frame takes, by its header. Raises NotUnpacked.

    RFC 8878, 3.1.1.1.
    """
    if len(frame) < 18 or not frame.startswith(_ZSTD_MAGIC):
        raise NotUnpacked("not a Zstandard frame")
    descriptor = frame[4]
    if not descriptor & 0x20:  # not a single segment: a window follows
        base = 1 << 10 + (frame[5] >> 3)
        return base + base // 8 * (frame[5] & 7)
    at = 5 + (0, 1, 2, 4)[descriptor & 3]
    size = 1 << (descriptor >> 6)
    return int.from_bytes(frame[at : at + size], "little") + (256 if size == 2 else 0)
