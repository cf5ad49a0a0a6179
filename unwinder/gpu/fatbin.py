"""List the images in a fat binary: one program per architecture, as the CUDA compiler writes them.

In: the bytes of a section that holds fat binaries, one container after another. Out: `Image`s, by
position; nothing is unpacked. The format is not published; magic numbers and fields are those that
CUDA 11 to 13 write.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

PTX, CUBIN = 1, 2  # kinds of images: text of the virtual machine, an ELF file of one architecture
STORED, LZ4, ZSTD = "stored", "lz4", "zstd"  # how an image is packed

MAX_IMAGES = 200_000  # of one file; cuBLAS 13 has 5,400
_MAGIC = 0xBA55ED50
_CONTAINER = struct.Struct("<IHHQ")  # magic, version, bytes of this header, bytes of all that follows
# Kind, version, bytes of this header; bytes that the image takes, with padding; bytes of the packed
# image, or 0; ...; architecture; ...; flags; ...; bytes of the unpacked image.
_IMAGE = struct.Struct("<HHIQI8xI8xQ8xQ")
_PACKED_LZ4, _PACKED_ZSTD = 0x2000, 0x8000  # flags
_ALIGNED_BYTES = 8
_MAX_GAP_BYTES = 4096  # between two containers: linkers align them

Read = Callable[[int, int], bytes]  # position, bytes -> what is there, fewer at the end


@dataclass(frozen=True, slots=True)
class Image:
    """One program in a fat binary. `arch`: 80 for sm_80; `offset`: its position in the file."""

    kind: int
    arch: int
    offset: int
    stored_bytes: int
    unpacked_bytes: int
    packing: str


def containers(read: Read, begin: int, end: int) -> Iterator[tuple[Image, ...]]:
    """Yield the images of each container from `begin` to `end`; stop where no header follows within 4 KB.

    A malformed image ends its container. At most MAX_IMAGES in all. Reads only headers. Raises what
    `read` raises.
    """
    left = MAX_IMAGES
    while left > 0 and (at := _next_container(read, begin, end)) is not None:
        _, _, head_bytes, size = _CONTAINER.unpack(read(at, _CONTAINER.size))
        stop = min(at + head_bytes + size, end)
        found = tuple(_images(read, at + head_bytes, stop, left))
        yield found
        left -= max(len(found), 1)
        begin = max(stop, at + _CONTAINER.size)


def _next_container(read: Read, begin: int, end: int) -> int | None:
    """Return the position of the first container header within 4 KB after `begin`, 8-byte aligned.

    None where there is none before `end`.
    """
    begin = -(-begin // _ALIGNED_BYTES) * _ALIGNED_BYTES
    if begin + _CONTAINER.size > end:
        return None
    text = read(begin, min(_MAX_GAP_BYTES, end - begin))
    magic = _MAGIC.to_bytes(4, "little")
    at = text.find(magic)
    while at >= 0 and at % _ALIGNED_BYTES:
        at = text.find(magic, at + 1)
    return begin + at if 0 <= at <= len(text) - _CONTAINER.size else None


def _images(read: Read, at: int, end: int, most: int) -> Iterator[Image]:
    """Yield the images from `at` to `end`, `most` at most; stop at the first that is malformed."""
    while at + _IMAGE.size <= end and most > 0:
        head = read(at, _IMAGE.size)
        if len(head) < _IMAGE.size:
            return
        kind, _, head_bytes, padded_bytes, packed_bytes, arch, flags, unpacked_bytes = _IMAGE.unpack(head)
        begin = at + head_bytes
        if head_bytes < _IMAGE.size or begin + padded_bytes > end:
            return
        yield _image(kind, arch, begin, padded_bytes, packed_bytes, flags, unpacked_bytes)
        at, most = begin + padded_bytes, most - 1


def _image(
    kind: int, arch: int, begin: int, padded_bytes: int, packed_bytes: int, flags: int, unpacked_bytes: int
) -> Image:
    """Build an Image from the fields of its header; `begin`: file position of its bytes.

    `packed_bytes` and `unpacked_bytes` count only where `flags` say that it is packed.
    """
    packing = LZ4 if flags & _PACKED_LZ4 else ZSTD if flags & _PACKED_ZSTD else STORED
    if packing == STORED:
        return Image(kind, arch, begin, padded_bytes, padded_bytes, packing)
    return Image(kind, arch, begin, min(packed_bytes, padded_bytes), unpacked_bytes, packing)
