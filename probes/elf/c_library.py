"""Recognise the C library by file name: everything calls it, so a stack in it does not identify the caller. Pure."""

from __future__ import annotations

# glibc's libc.so.6, and libc-2.31.so as it was called before 2.34; its separate parts until then;
# the loader; musl's single file.
_NAMES = ("libc.so", "libc-", "libpthread", "librt", "ld-", "ld.so", "libc.musl-")


def is_c_library(name: str) -> bool:
    """Tell whether a file name (without folder) is that of the C library."""
    return name.startswith(_NAMES)
