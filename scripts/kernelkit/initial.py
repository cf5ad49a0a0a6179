"""The first file system of the guest: busybox, a few modules, and a script that makes the host's root the guest's root. Pure."""

from __future__ import annotations

import gzip
import shlex
from collections.abc import Mapping, Sequence

_FOLDERS = ("bin", "mods", "proc", "sys", "dev", "host", "over", "root")
_HEADER_BYTES = 110
_ONE_FILE, _ONE_FOLDER = 0o100755, 0o040755
SHARE = "host"  # tag of the 9p share

# An overlay of memory above the read-only share: whatever is written in the guest is gone with it.
_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t devtmpfs dev /dev
for module in /mods/*; do insmod $module 2>/dev/null; done
mount -t 9p -o trans=virtio,version=9p2000.L,msize=1048576,ro,cache=loose {share} /host || echo "no root"
mount -t tmpfs -o size=75% over /over; mkdir -p /over/upper /over/work
mount -t overlay -o lowerdir=/host,upperdir=/over/upper,workdir=/over/work over /root
exec switch_root /root /bin/sh -c {command}
"""
# Whatever the command does, the machine is switched off behind it.
_THEN_OFF = "mount -t proc proc /proc; {command}; echo o > /proc/sysrq-trigger; sleep 20"


def initial(busybox: bytes, modules: Mapping[str, bytes], command: Sequence[str]) -> bytes:
    """Build the archive (cpio newc, gzip). `modules`: by names in the order of loading; `command`: the guest's first process."""
    words = _THEN_OFF.format(command=shlex.join(command))
    script = _INIT.format(share=SHARE, command=shlex.quote(words))
    files = {
        "bin/busybox": busybox,
        "init": script.encode(),
        **{f"mods/{name}": content for name, content in modules.items()},
    }
    entries = [_entry(name, _ONE_FOLDER, b"") for name in _FOLDERS]
    entries += [_entry(name, _ONE_FILE, content) for name, content in files.items()]
    return gzip.compress(b"".join((*entries, _entry("TRAILER!!!", 0, b""))), 1)


def _entry(name: str, mode: int, content: bytes) -> bytes:
    """One entry of the archive, padded to four bytes. Source: Documentation/driver-api/early-userspace/buffer-format.rst."""
    path = name.encode() + b"\0"
    fields = (0, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path), 0)
    header = b"070701" + b"".join(b"%08x" % field for field in fields)
    return _padded(header + path) + _padded(content)


def _padded(content: bytes) -> bytes:
    return content + b"\0" * (-len(content) % 4)
