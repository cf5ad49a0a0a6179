"""`python -m imagekit FOLDER OUT NAME [KEY=VALUE…]`: build FOLDER/Dockerfile without a builder, print the image's digest.

KEY=VALUE: arguments of the Dockerfile. MIRROR in the environment: where debootstrap takes Debian from. Exit codes: 0 done, 64 wrong
usage, 69 the base or a package cannot be had.
"""

from __future__ import annotations

import os
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from imagekit.archive import pack
from imagekit.dockerfile import DockerfileError, stages
from imagekit.roots import BuildError, build

_MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def main(arguments: Sequence[str]) -> int:
    """Build the image; return the exit code."""
    if len(arguments) < 3 or not all("=" in one for one in arguments[3:]):
        sys.stderr.write(__doc__ or "")
        return 64
    folder, out, name = Path(arguments[0]), Path(arguments[1]), arguments[2]
    given = dict(one.split("=", 1) for one in arguments[3:])
    machine = platform.machine()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the roots, of a gigabyte, go with it
    with tempfile.TemporaryDirectory(prefix="rankscope-image-", dir=os.environ.get("TMPDIR", "/var/tmp")) as work:
        try:
            found = stages((folder / "Dockerfile").read_text(encoding="utf-8"), given)
            root, config = build(found, folder, Path(work), os.environ.get("MIRROR", ""))
        except (BuildError, DockerfileError) as error:
            sys.stderr.write(f"imagekit: {error}\n")
            return 69
        unix = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
        print(pack(root, config, out, name, _MACHINES.get(machine, machine), unix))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
