"""What a rank runs, as one short digest: the same for runs that are started alike on one host.

Launchers give each run a new id and other ports; what remains is the program with all its arguments,
and the folder where it runs. Arguments may hold secrets: the digest is keyed by the host, and no
argument can be read from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from pathlib import Path

from rankscope.probes.host.machine import machine_id

# Options that differ between the ranks of a run, or between runs that are started alike.
_OWN = re.compile(
    r"--?((local|global|node|machine)[-_]?)?rank|--?(master|rdzv|dist)[-_](port|addr|id|endpoint|url|conf)|--?(run|job)[-_]?id|--?port"
)
_DIGEST_BYTES, _ARGUMENTS_MOST = 8, 4096


def run_of(pid: int, command: Sequence[str], root: Path) -> str:
    """Digest of what a process runs; '' where its arguments cannot be read."""
    if not command:
        return ""
    try:
        folder = str((root / f"proc/{pid}/cwd").readlink())
    except OSError:
        folder = ""
    told = "\0".join((folder, *common_arguments(command[:_ARGUMENTS_MOST])))
    key = machine_id(root).encode()[:64]
    return blake2b(told.encode("utf-8", "surrogateescape"), digest_size=_DIGEST_BYTES, key=key).hexdigest()


def common_arguments(command: Sequence[str]) -> Iterator[str]:
    """Yield the arguments without those that number a rank or a run, and without their values."""
    skips = False
    for argument in command:
        name, equals, _ = argument.partition("=")
        own = _OWN.fullmatch(name) is not None
        if not own and not skips:
            yield argument
        skips = own and not equals
