"""Dumps of PyTorch's flight recorder, one file per rank, read without executing them.

A dump is a pickle of plain data: dicts, lists, tuples, strings, numbers. Whatever else a pickle may hold makes objects, by calling
functions that it names; no such instruction is let through, nor one that makes the reader take memory by its number. Formats:
torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.x.
"""

from __future__ import annotations

import ast
import io
import pickle
import pickletools
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankscope.probes.errors import BadData

FILE_BYTES_MOST = 32 << 20  # 2,000 entries with their stacks are 4 MB
RANKS_MOST = 131_072
_ENTRIES_MOST = 100_000
_TENSORS_MOST, _DIMENSIONS_MOST = 64, 16
_PLAIN = frozenset((
    "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "NONE", "NEWTRUE", "NEWFALSE", "INT", "BININT", "BININT1", "BININT2",
    "LONG1", "FLOAT", "BINFLOAT", "STRING", "SHORT_BINSTRING", "BINSTRING", "BINUNICODE", "SHORT_BINUNICODE", "UNICODE",
    "EMPTY_LIST", "APPEND", "APPENDS", "LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "DICT", "SETITEM",
    "SETITEMS", "BINPUT", "LONG_BINPUT", "MEMOIZE", "BINGET", "LONG_BINGET",
))  # fmt: skip


@dataclass(frozen=True, slots=True)
class Group:
    """A group of processes, the same on all its members: what it is for, and their ranks."""

    words: str
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Pending:
    """A collective that a rank has enqueued and not finished. `elements`: of its inputs, together."""

    group: Group
    sequence: int
    operation: str
    elements: int


@dataclass(frozen=True, slots=True)
class Dump:
    """What one rank says. enqueued, completed: the last collective of each group, by sequence number; -1: none. pending: in order."""

    rank: int
    enqueued: Mapping[Group, int]
    completed: Mapping[Group, int]
    pending: tuple[Pending, ...]


def read_folder(folder: Path) -> tuple[Dump, ...]:
    """All dumps of a folder, by rank: files whose names end with a rank's number. BadData where there is none, or one is none."""
    try:
        named = [(found, path) for path in folder.iterdir() if (found := re.search(r"(\d{1,6})$", path.name))]
    except OSError as error:
        raise BadData(f"{folder} cannot be read: {error.strerror}") from None
    if not named:
        raise BadData(f"{folder} holds no dumps of a flight recorder: their names end with the number of a rank")
    numbers = [int(found.group(1)) for found, _ in named]
    if len(named) > RANKS_MOST or len(set(numbers)) < len(numbers):
        raise BadData(f"{folder} holds dumps of more than one job, or of more than {RANKS_MOST} ranks")
    return tuple(parse(_content(path), rank) for rank, (_, path) in sorted(zip(numbers, named, strict=True)))


def _content(path: Path) -> bytes:
    try:
        # A FIFO would never end: what is no file is told before it is opened.
        if not stat.S_ISREG(path.stat().st_mode):
            raise BadData(f"{path} is no file")
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MOST + 1)
    except OSError as error:
        raise BadData(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > FILE_BYTES_MOST:
        raise BadData(f"{path} is larger than {FILE_BYTES_MOST >> 20} MB: no dump is")
    return content


class _Plain(pickle.Unpickler):
    """Finds no class: beside the list above, a second lock on the same door."""

    def find_class(self, module: str, name: str) -> Any:
        raise BadData(f"the dump asks for {module}.{name}: it is no plain data")


def parse(content: bytes, rank: int) -> Dump:
    """One dump. BadData where it is none."""
    try:
        _check(content)
        return _dump(_Plain(io.BytesIO(content)).load(), rank)
    except BadData:
        raise
    except Exception as error:  # whatever a damaged file makes of the reader
        raise BadData(f"the dump of rank {rank} cannot be read: {type(error).__name__}") from None


def _check(content: bytes) -> None:
    """Only instructions that make plain data, and no place in the memo beyond the number of instructions before it."""
    for count, (instruction, argument, _) in enumerate(pickletools.genops(content)):
        if instruction.name not in _PLAIN:
            raise BadData(f"the dump holds {instruction.name}: it is no plain data")
        if instruction.name == "LONG_BINPUT" and isinstance(argument, int) and argument > count:
            raise BadData("the dump numbers its parts as no pickle does")


def _dump(content: Mapping[str, Any], rank: int) -> Dump:
    groups = {
        str(name): Group(str(about["desc"]), _ranks(about["ranks"])) for name, about in content["pg_config"].items()
    }
    entries = content["entries"][-_ENTRIES_MOST:]
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
    """Number of a group on this rank → group. Both numbers and names grow as groups are made; entries give both."""
    found: dict[str, Group] = {}
    if len(groups) == len(status) and all(map(str.isdigit, groups)):
        found = dict(
            zip(sorted(map(str, status), key=int), (groups[name] for name in sorted(groups, key=int)), strict=True)
        )
    for entry in entries:
        name = str(entry["process_group"][0])
        if name in groups:
            found[str(entry["pg_id"])] = groups[name]
    return found


def _pending(groups: Mapping[str, Group], entry: Mapping[str, Any]) -> Pending | None:
    group = groups.get(str(entry["process_group"][0]))
    if group is None:
        return None
    elements = 0
    for sizes in entry.get("input_sizes", ())[:_TENSORS_MOST]:
        product = 1
        for size in sizes[:_DIMENSIONS_MOST]:
            product *= int(size)
        elements += product
    operation = str(entry["profiling_name"]).partition(":")[2] or str(entry["profiling_name"])
    return Pending(group, int(entry["collective_seq_id"]), operation[:80], elements)


def _ranks(text: object) -> tuple[int, ...]:
    """`[0, 2]`, as the dump writes the members of a group."""
    found = ast.literal_eval(text) if isinstance(text, str) else text
    if not isinstance(found, (list, tuple)) or len(found) > RANKS_MOST:
        raise BadData("the dump does not tell the members of a group")
    return tuple(int(rank) for rank in found)
