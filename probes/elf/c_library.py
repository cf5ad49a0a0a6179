"""Which mapped files are the C library: what everything calls, so that who is in it says nothing of who called it. Pure."""

from __future__ import annotations

# glibc's libc.so.6, and libc-2.31.so as it was called before 2.34; its parts of then; the loader; musl's one file for all.
_NAMES = ("libc.so", "libc-", "libpthread", "librt", "ld-", "ld.so", "libc.musl-")


def is_c_library(name: str) -> bool:
    """By the name of the file, without its folder."""
    return name.startswith(_NAMES)
