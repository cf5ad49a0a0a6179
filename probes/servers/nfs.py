"""Parse /proc/PID/mountstats: what the server of each NFS mount answered (nfsiostat reads the same)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankscope.probes.base.text import printable
from rankscope.probes.host.mounts import unescape
from rankscope.probes.host.procfs import number

_DEVICE = re.compile(rb"device (\S+) mounted on (\S+) with fstype (nfs4?) statvers=[\d.]{1,9}")
_ADDRESS = re.compile(rb"(?:^|,)addr=([0-9A-Za-z.:%]{1,64})(?:,|$)")
_OPERATIONS = {b"READ": "read", b"WRITE": "write", b"COMMIT": "commit"}
_NAME_MOST = 80


@dataclass(frozen=True, slots=True)
class NfsMount:
    """Totals of one mount since it was made. `server`: name or address as mounted; `address`: '' if
    not said; seconds add up over requests, from their making to their answer.
    """

    server: str
    address: str
    mount_point: str
    reads: int = 0
    read_s: float = 0.0
    writes: int = 0
    write_s: float = 0.0
    retransmits: int = 0


def parse_mountstats(data: bytes) -> tuple[NfsMount, ...]:
    """Parse the NFS mounts in mountstats, in order; other file systems and unusable lines are left out.

    Never raises.
    """
    found: list[dict[str, int | float | str]] = []
    this: dict[str, int | float | str] | None = None
    for line in data[: data.rfind(b"\n") + 1].split(b"\n"):  # a last line without an end was cut
        if line.startswith(b"device "):
            this = _begin(line)
            if this is not None:
                found.append(this)
        elif this is not None:
            word, _, rest = line.strip().partition(b":")
            if word == b"opts" and (address := _ADDRESS.search(rest.strip())):
                this["address"] = address[1].decode("ascii")
            elif word in _OPERATIONS:
                _add(this, _OPERATIONS[word], rest.split())
    return tuple(NfsMount(**one) for one in found)  # type: ignore[arg-type]


def _begin(line: bytes) -> dict[str, int | float | str] | None:
    """Parse the line that begins a mount's section to the first fields of NfsMount; None if it is no NFS mount."""
    match = _DEVICE.fullmatch(line.strip())
    if match is None:
        return None
    server, colon, _ = unescape(match[1]).rpartition(":/")
    if not colon:
        return None
    return {"server": printable(server.strip("[]"))[:_NAME_MOST], "address": "", "mount_point": unescape(match[2])}


def _add(mount: dict[str, int | float | str], operation: str, words: list[bytes]) -> None:
    """Add one operation's line of statistics to the fields of `mount`; unusable lines change nothing.

    `operation`: 'read', 'write', or 'commit', whose time counts as writing. `words`: operations,
    transmissions, time-outs, bytes sent, bytes received, then milliseconds queued, on the way and in all.
    """
    try:
        made, sent, *_, whole_ms = (number(word) for word in words[:8])
    except ValueError:
        return
    if len(words) < 8:
        return
    way = "write" if operation == "commit" else operation
    mount[f"{way}_s"] = float(mount.get(f"{way}_s", 0.0)) + whole_ms / 1e3
    if operation != "commit":
        mount[f"{way}s"] = int(mount.get(f"{way}s", 0)) + made
    mount["retransmits"] = int(mount.get("retransmits", 0)) + max(sent - made, 0)
