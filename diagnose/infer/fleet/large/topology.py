"""Read from a file which hosts share a switch, a rack or a file system. Pure, except for reading
it.

host,rack,switch,filesystem     a table with these columns (any of the last three), a row per host
node-001,r1,leaf-1,/scratch-a

SwitchName=leaf-1 Nodes=node-[001-032]   or Slurm's topology.conf; a switch of switches has all
SwitchName=spine  Switches=leaf-[1-8]    their hosts

{"items": [{"metadata": {"labels": …     or labels of Kubernetes nodes (node_labels.py), as in
                                         kubectl get nodes -o json"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rankscope.diagnose.infer.fleet.large import node_labels
from rankscope.diagnose.text import clean
from rankscope.probes.base.errors import BadData
from rankscope.probes.base.folders import read_plain

KINDS = ("rack", "switch", "filesystem")
_MOST_BYTES, _MOST_HOSTS = 256 << 20, 2_000_000
_MOST_CHARACTERS = 32 * _MOST_HOSTS  # limit on expanded host names: a short line can expand to millions
_RANGE = re.compile(r"([^\[\],]*)\[([0-9,\-]+)\]([^\[\],]*)")
_SLURM = re.compile(r"\s*SwitchName\s*=", re.IGNORECASE)
_MARKS = re.compile(r"[\[\],]")


class BadTopology(BadData):
    """The file is no valid topology."""

    help = "Mend the file, or leave --topology out."


@dataclass(frozen=True, slots=True)
class Group:
    """A named rack, switch or file system and the hosts that share it."""

    kind: str
    name: str
    hosts: frozenset[str]


def read_topology(path: Path) -> tuple[Group, ...]:
    """Read the groups from a file. Raises BadTopology (BadData), with the wrong line."""
    try:
        text = read_plain(path, _MOST_BYTES).decode(errors="replace")
    except OSError as error:
        raise BadTopology(f"{path} cannot be read: {error.strerror or error}") from error
    try:
        return parse(text)
    except (ValueError, csv.Error) as error:
        raise BadTopology(f"{path} is no topology: {clean(str(error), 200)}") from error


def parse(text: str) -> tuple[Group, ...]:
    """Parse the groups in a text of any of the formats. Raises ValueError."""
    lines = text.splitlines()
    if node_labels.is_nodes(text):
        groups = _nodes(text)
    elif any(map(_SLURM.match, lines)):
        groups = _slurm(lines)
    else:
        groups = _table(lines)
    if not groups:
        raise ValueError("it names no group of hosts")
    return groups


def _nodes(text: str) -> tuple[Group, ...]:
    """Parse the groups in the labels of Kubernetes nodes, in JSON. Raises ValueError."""
    members: dict[tuple[str, str], set[str]] = {}
    for kind, name, host in islice(node_labels.members(text), 8 * _MOST_HOSTS):
        members.setdefault((kind, name), set()).add(host)
    return _groups(members)


def _groups(members: Mapping[tuple[str, str], Iterable[str]]) -> tuple[Group, ...]:
    """Build groups, sorted, from the hosts by (kind, group name)."""
    return tuple(Group(kind, name, frozenset(hosts)) for (kind, name), hosts in sorted(members.items()))


def _table(lines: list[str]) -> tuple[Group, ...]:
    """Parse a CSV table with a column `host` and columns of KINDS, whose cells name groups. Raises ValueError."""
    rows = csv.DictReader(line for line in lines if line.strip() and not line.lstrip().startswith("#"))
    names = [name.strip() for name in rows.fieldnames or ()]
    kinds = [kind for kind in KINDS if kind in names]
    if "host" not in names or not kinds:
        raise ValueError(f"its first line must name the column host, and some of {', '.join(KINDS)}")
    rows.fieldnames = names
    members: dict[tuple[str, str], set[str]] = {}
    for number, row in enumerate(islice(rows, _MOST_HOSTS), 2):
        host = (row["host"] or "").strip()
        if not host:
            raise ValueError(f"row {number} has no host")
        for kind in kinds:
            if name := (row[kind] or "").strip():
                members.setdefault((kind, name), set()).add(host)
    return _groups(members)


@dataclass(slots=True)
class Room:
    """Remaining limit on names and characters that the host lists of one file may expand to."""

    names: int = 2 * _MOST_HOSTS
    characters: int = _MOST_CHARACTERS

    def take(self, name: str) -> None:
        """Count one more name. Raises ValueError beyond the limit."""
        self.names -= 1
        self.characters -= len(name)
        if self.names < 0 or self.characters < 0:
            raise ValueError("absurdly many hosts")


def _slurm(lines: list[str]) -> tuple[Group, ...]:
    """Parse the lines of Slurm's topology.conf: one group per switch, with all hosts below it.

    Raises ValueError.
    """
    nodes: dict[str, set[str]] = {}
    below: dict[str, list[str]] = {}
    room = Room()
    for number, line in enumerate(lines, 1):
        words = dict(part.split("=", 1) for part in line.partition("#")[0].split() if "=" in part)
        said = {key.lower(): value for key, value in words.items()}
        if "switchname" not in said:
            continue
        if not ("nodes" in said or "switches" in said):
            raise ValueError(f"line {number}: a switch without Nodes and Switches")
        for switch in expand(said["switchname"], room):
            nodes.setdefault(switch, set()).update(expand(said.get("nodes", ""), room))
            below.setdefault(switch, []).extend(expand(said.get("switches", ""), room))
    return tuple(Group("switch", name, hosts) for name, hosts in sorted(_with_below(nodes, below).items()) if hosts)


def _with_below(nodes: Mapping[str, set[str]], below: Mapping[str, list[str]]) -> dict[str, frozenset[str]]:
    """Return all hosts below each switch, directly or through other switches.

    `nodes`: hosts, `below`: switches directly below each switch. Raises ValueError for cycles or
    too many hosts.
    """
    whole: dict[str, frozenset[str]] = {}
    members = 0
    for top in below:
        way, opened = [top], set()
        while way:
            name = way[-1]
            waiting = [other for other in below[name] if other in below and other not in whole]
            if name in whole or not waiting:
                way.pop()
                if name in whole:
                    continue
                parts = [whole[other] for other in below[name] if other in whole]
                # A switch above a single other one has the same set of hosts.
                alike = len(parts) == 1 and not nodes[name]
                whole[name] = parts[0] if alike else frozenset(nodes[name]).union(*parts)
                members += 0 if alike else len(whole[name])
                if members > 4 * _MOST_HOSTS:
                    raise ValueError("absurdly many hosts below its switches")
            elif name in opened:
                raise ValueError(f"switch {name} is below itself")
            else:
                opened.add(name)
                way.extend(waiting)
    return whole


def expand(names: str, room: Room | None = None) -> Iterator[str]:
    """Yield the names of a Slurm host list, `a[01-03,7],b`.

    Raises ValueError if invalid or beyond `room`.
    """
    room = room or Room()
    for part in _parts(names):
        for name in _expanded(part):
            room.take(name)
            yield name


def _parts(names: str) -> Iterator[str]:
    """Split a host list at commas outside of brackets.

    Raises ValueError if brackets do not match.
    """
    began, inside = 0, False
    for mark in _MARKS.finditer(names):
        if mark[0] == ",":
            if not inside:
                yield from filter(None, (names[began : mark.start()],))
                began = mark.end()
        elif inside == (mark[0] == "["):
            raise ValueError(f"{names[:80]!r} is no list of hosts")
        else:
            inside = not inside
    if inside:
        raise ValueError(f"{names[:80]!r} is no list of hosts")
    yield from filter(None, (names[began:],))


def _expanded(part: str) -> Iterable[str]:
    """Expand one part of a host list: 'a[01-03]b' gives a01b, a02b, a03b. Raises ValueError."""
    found = _RANGE.fullmatch(part) if "[" in part else None
    if found is None:
        if "[" in part or "]" in part:
            raise ValueError(f"{part[:80]!r} is no list of hosts")
        return (part,)
    return (f"{found[1]}{number}{found[3]}" for number in _numbers(found[2]))


def _numbers(ranges: str) -> Iterator[str]:
    """Yield the numbers of '01-03,7' as text, padded with zeros as the first of each range is. Raises ValueError."""
    for each in ranges.split(","):
        first, _, last = each.partition("-")
        last = last or first
        if not (first.isdigit() and last.isdigit() and int(last) - int(first) < _MOST_HOSTS):
            raise ValueError(f"[{ranges[:80]}] is no range")
        for number in range(int(first), int(last) + 1):
            yield str(number).zfill(len(first))
