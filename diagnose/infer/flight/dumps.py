"""Read dumps of PyTorch's flight recorder, one file per rank, without executing them.

A dump is a pickle of plain data (pickles.py) written by the job, whose owner may have written
anything. Formats: torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.x.
"""

from __future__ import annotations

import errno
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.flight import pickles
from rankscope.probes.base.errors import BadData
from rankscope.probes.base.folders import read_plain

FILE_BYTES_MOST = budgets.FILE_BYTES_MOST  # 2,000 entries with stacks take 4 MB
RANKS_MOST = budgets.WORLD_MOST // 8  # one file each
_TENSORS_MOST = budgets.EXAMINED
_DIMENSIONS_MOST = _TENSORS_MOST // 4


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: description and ranks, equal on all members.

    The hash is cached, as lookups are frequent.
    """

    words: str
    ranks: tuple[int, ...]
    hashed: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "hashed", hash((self.words, self.ranks)))

    def __hash__(self) -> int:
        return self.hashed


@dataclass(slots=True)
class _Known:
    """Cache of groups and member lists: a thousand ranks name the same thousand members."""

    members: dict[str, tuple[int, ...]] = field(default_factory=dict)
    groups: dict[Group, Group] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pending:
    """A collective that a rank has enqueued and not finished. `elements`: total of its inputs."""

    group: Group
    sequence: int
    operation: str
    elements: int


@dataclass(frozen=True, slots=True)
class Dump:
    """Dump of one rank.

    `enqueued`, `completed`: last sequence number by group, -1: none; `pending`: in order.
    """

    rank: int
    enqueued: Mapping[Group, int]
    completed: Mapping[Group, int]
    pending: tuple[Pending, ...]


def read_folder(folder: Path) -> tuple[Dump, ...]:
    """Read all dumps of a folder, sorted by rank; file names end with the rank number.

    Raises BadData if there are none, or one is invalid.
    """
    try:
        named = [(found, path) for path in folder.iterdir() if (found := re.search(r"(\d{1,6})$", path.name))]
    except OSError as error:
        raise BadData(f"{folder} cannot be read: {error.strerror}") from None
    if not named:
        raise BadData(f"{folder} holds no dumps of a flight recorder: their names end with the number of a rank")
    numbers = [int(found.group(1)) for found, _ in named]
    if len(named) > RANKS_MOST or len(set(numbers)) < len(numbers):
        raise BadData(f"{folder} holds dumps of more than one job, or of more than {RANKS_MOST} ranks")
    known = _Known()
    return tuple(parse(_content(path), rank, known) for rank, (_, path) in sorted(zip(numbers, named, strict=True)))


def _content(path: Path) -> bytes:
    """Read the bytes of a dump. Raises BadData if unreadable or larger than FILE_BYTES_MOST."""
    try:
        return read_plain(path, FILE_BYTES_MOST)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise BadData(f"{path} is larger than {FILE_BYTES_MOST >> 20} MB: no dump is") from None
        raise BadData(f"{path} cannot be read: {error.strerror}") from None


def parse(content: bytes, rank: int, known: _Known | None = None) -> Dump:
    """Parse one dump, of this rank. Raises BadData if it is invalid.

    `known`: cache of groups that dumps of one job share; None: a new one.
    """
    try:
        return _dump(pickles.load(content), rank, known or _Known())
    except BadData as error:
        raise BadData(f"the dump of rank {rank}: {error}") from None
    except Exception as error:  # a damaged file may raise anything
        raise BadData(f"the dump of rank {rank} cannot be read: {type(error).__name__}") from None


def _dump(content: Mapping[str, Any], rank: int, known: _Known) -> Dump:
    """Convert the unpickled content of a rank's dump. Raises BadData, or any error if damaged."""
    groups = {}
    members = 0
    for name, about in content["pg_config"].items():
        made = Group(_text(about["desc"]), _ranks(about["ranks"], known.members))
        groups[_text(name)] = known.groups.setdefault(made, made)
        members += len(made.ranks)
        if members > pickles.PARTS_MOST:
            raise BadData("it tells of more groups than a job has")
    entries = content["entries"]
    by_number = _numbered(groups, content["pg_status"], entries)
    enqueued, completed = {}, {}
    for number, status in content["pg_status"].items():
        group = by_number.get(str(number))
        if group is not None:
            enqueued[group] = int(status["last_enqueued_collective"])
            completed[group] = int(status["last_completed_collective"])
    pending = [_pending(groups, entry) for entry in entries if entry["state"] != "completed" and not entry["is_p2p"]]
    return Dump(rank, enqueued, completed, tuple(each for each in pending if each is not None))


def _numbered(groups: Mapping[str, Group], status: Mapping[Any, Any], entries: Sequence[Any]) -> dict[str, Group]:
    """Map the numbers that collectives have for groups on this rank to the groups.

    `groups`: by name. Numbers and names grow as groups are made; entries contain both.
    """
    found: dict[str, Group] = {}
    if len(groups) == len(status) and all(map(str.isdigit, groups)):
        found = dict(
            zip(sorted(map(str, status), key=int), (groups[name] for name in sorted(groups, key=int)), strict=True)
        )
    for entry in entries:
        name = _text(entry["process_group"][0])
        if name in groups:
            found[_text(entry["pg_id"])] = groups[name]
    return found


def _pending(groups: Mapping[str, Group], entry: Mapping[str, Any]) -> Pending | None:
    """Convert the entry of an unfinished collective (the caller checks that); None if its group is unknown.

    Raises BadData for an impossible size or name.
    """
    group = groups.get(_text(entry["process_group"][0]))
    if group is None:
        return None
    elements = 0
    for sizes in entry.get("input_sizes", ())[:_TENSORS_MOST]:
        product = 1
        for size in sizes[:_DIMENSIONS_MOST]:
            product *= int(size)
        elements += product
    if elements >> 64 not in (0, -1):
        raise BadData("a size in it is none")
    name = _text(entry["profiling_name"])
    operation = name.partition(":")[2] or name
    return Pending(group, int(entry["collective_seq_id"]), operation[:80], elements)


def _text(said: object) -> str:
    """Convert a name or number to text.

    BadData for other types: formatting nested lists may take for ever.
    """
    if not isinstance(said, (str, int)):
        raise BadData("a name in it is none")
    return str(said)


def _ranks(said: object, known: dict[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Parse the members of a group, such as `[0, 2]`, using the cache `known`."""
    if isinstance(said, str):
        if said not in known:
            known[said] = _numbers(json.loads(said) if len(said) < RANKS_MOST * len("131071, ") else None)
        return known[said]
    return _numbers(said)


def _numbers(found: object) -> tuple[int, ...]:
    """Convert a list of members to rank numbers. Raises BadData if it is none, or too long."""
    if not isinstance(found, (list, tuple)) or len(found) > RANKS_MOST:
        raise BadData("it does not tell the members of a group")
    return tuple(int(rank) for rank in found)
