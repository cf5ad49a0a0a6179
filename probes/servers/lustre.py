"""Parse what a Lustre client knows of its object storage targets: `stats` and `import` of each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from rankscope.probes.base.text import printable
from rankscope.probes.host.procfs import number

_FOLDER = re.compile(r"(?P<fs>[\w.-]{1,64})-(?P<ost>OST[0-9a-fA-F]{4})-osc-[0-9a-zA-Z]{1,32}")
_NID_MOST = 64


@dataclass(frozen=True, slots=True)
class OstCounts:
    """Totals of one target since the file system was mounted."""

    reads: int = 0
    read_s: float = 0.0
    writes: int = 0
    write_s: float = 0.0


@dataclass(frozen=True, slots=True)
class OstImport:
    """Connection to one target. `node`: the one that serves it now, e.g. '10.0.0.5@tcp', '' if
    none; `state`: 'FULL' where all is well.
    """

    state: str
    node: str
    in_flight: int


def target_of(folder: str) -> tuple[str, str] | None:
    """Split the folder name of a Lustre client's target: ('scratch', 'OST0003'); None if it is no object storage."""
    match = _FOLDER.fullmatch(folder)
    return (match["fs"], match["ost"]) if match else None


def parse_stats(data: bytes) -> OstCounts:
    """Parse a Lustre target's `stats` file to reads and writes; 0 where it lists none. Never raises.

    Lines: name, samples, unit, least, most, sum.
    """
    found = {}
    for line in data.split(b"\n"):
        words = line.split()
        if len(words) < 7 or words[0] not in (b"ost_read", b"ost_write") or words[3] != b"[usec]":
            continue
        try:
            found[words[0]] = number(words[1]), number(words[6]) / 1e6
        except ValueError:
            continue
    reads, read_s = found.get(b"ost_read", (0, 0.0))
    writes, write_s = found.get(b"ost_write", (0, 0.0))
    return OstCounts(reads, read_s, writes, write_s)


def parse_import(data: bytes) -> OstImport:
    """Parse a Lustre target's `import` file, lines of 'name: value'. Never raises; what is missing is '' or 0."""
    values: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").splitlines():
        name, colon, value = line.strip().partition(":")
        if colon:
            values.setdefault(name.strip(), value.strip())
    try:
        in_flight = number(values.get("inflight", "").encode())
    except ValueError:
        in_flight = 0
    node = printable(values.get("current_connection", ""))[:_NID_MOST]
    return OstImport(printable(values.get("state", ""))[:20], "" if node == "<none>" else node, in_flight)
