"""A file system in user space with one file: MOUNT-POINT FILE whole|broken [USER]. It stops answering when this program is stopped.

`broken`: whatever is made or written in it fails with EIO.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
import sys
from pathlib import Path

_IN = struct.Struct("<IIQQIIII")
_INIT, _LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _FLUSH, _RELEASE, _BATCH_FORGET = 26, 1, 2, 3, 14, 15, 25, 18, 42
_STATFS, _MAKING = 17, (6, 8, 9, 12, 13, 16, 35)  # symlink, mknod, mkdir, rename, link, write, create
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")


def main() -> None:
    place, source, mode = sys.argv[1:4]
    user = int(sys.argv[4]) if len(sys.argv) > 4 else 0  # whose it is said to be
    folder_rights = 0o40700 if mode == "broken" else 0o40755
    content, name = Path(source).read_bytes(), Path(source).name.encode()
    device = os.open("/dev/fuse", os.O_RDWR)
    options = f"fd={device},rootmode=40000,user_id={user},group_id=0,allow_other".encode()
    if ctypes.CDLL(None, use_errno=True).mount(b"lab", place.encode(), b"fuse", 0, options):
        raise OSError(ctypes.get_errno(), "mount")
    print("ready", flush=True)

    def attributes(node: int) -> bytes:
        rights, size = (folder_rights, 4096) if node == 1 else (0o100755, len(content))
        return _ATTRIBUTES.pack(node, size, size // 512 + 1, 0, 0, 0, 0, 0, 0, rights, 1, 0, 0, 0, 4096, 0)

    while True:
        try:
            request = os.read(device, 1 << 18)
        except OSError:
            return
        _, what, unique, node, *_ = _IN.unpack_from(request)
        body, error = request[_IN.size :], 0
        answer = b""
        if what in (_FORGET, _BATCH_FORGET):
            continue
        if what == _INIT:
            answer = struct.pack("<IIIIHHIIHHI", 7, 31, 65536, 0, 12, 10, 65536, 1, 32, 0, 0) + bytes(24)
        elif what == _LOOKUP and body.rstrip(b"\0") == name:
            answer = struct.pack("<QQQQII", 2, 0, 0, 0, 0, 0) + attributes(2)
        elif what == _LOOKUP:
            error = errno.ENOENT
        elif what == _GETATTR:
            answer = struct.pack("<QII", 0, 0, 0) + attributes(node)
        elif what == _OPEN:
            answer = struct.pack("<QII", 0, 0, 0)
        elif what == _READ:
            _, at, size = struct.unpack_from("<QQI", body)
            answer = content[at : at + size]
        elif what == _STATFS:
            answer = struct.pack("<5QIIII", 1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20, 4096, 255, 4096, 0) + bytes(24)
        elif what not in (_FLUSH, _RELEASE):
            error = errno.EIO if mode == "broken" and what in _MAKING else errno.ENOSYS
        os.write(device, struct.pack("<IiQ", 16 + len(answer), -error, unique) + answer)


if __name__ == "__main__":
    main()
