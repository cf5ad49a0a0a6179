"""Convert windows of `rankscope.window/1`, from older observers, to the current schema. Pure.

They stored in sentences what has columns of its own now: stacks, the holder of the GIL, which
process took a CPU or a GPU. This is the only file that parses such sentences. What a sentence left
out (the folder of the holder's file) remains unknown.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rankscope.observer.window import schema
from rankscope.observer.window.manifest import EVENTS_DROPPED, WINDOW_SCHEMA, Loss, Manifest
from rankscope.observer.window.stacks import StackFrame, StackTree
from rankscope.observer.window.tables import cast, table_of, with_absent

# Sentences are parsed from their ends, not by one expression: its time would grow with the square
# of their length.
_PLACE_OF_HOLDER = re.compile(r":(\d+)\) on ")
# frames of a stack; of more the innermost are used. A stack was at most 4 KB of text, some 270
# frames
_DEEPEST = 1024
# of all stacks together, each of which may become a row: ten times what 64 ranks have
_MOST_FRAMES = 1 << 19
_MOST_DIGITS = 9  # of a line or a process: more do not fit its column

_LABEL = pa.dictionary(pa.int32(), pa.string())


def _changed(table: pa.Schema, without: Iterable[str] = (), more: Sequence[pa.Field] = ()) -> pa.Schema:
    """Return a schema without these columns, with the fields `more` at its end (instead of columns so named)."""
    left_out = {*without, *(field.name for field in more)}
    return pa.schema([*(field for field in table if field.name not in left_out), *more])


TABLES: dict[str, pa.Schema] = {
    "ranks": _changed(
        schema.RANKS,
        ("local_world_size", "guessed", "title", "age_s", "owner", "gpu_ids", "machine", "run", "tracer"),
        [pa.field("lost_events", pa.int64())],
    ),
    "steps": schema.STEPS,
    "patterns": _changed(
        schema.PATTERNS,
        (
            "holder_name",
            "holder_file",
            "holder_line",
            "holder_thread",
            "growth_s",
            "native_share",
            "kernel_share",
            "kernel_for",
        ),
        [pa.field("stack", _LABEL)],
    ),
    "collectives": schema.COLLECTIVES,
    "flows": _changed(schema.FLOWS, ("carried_bytes",)),
    "counters": _changed(schema.COUNTERS, ("comm", "pid")),
}


def upgrade(manifest: Manifest, tables: Mapping[str, pa.Table]) -> tuple[Manifest, dict[str, pa.Table]]:
    """Convert manifest and tables to the current schema. `tables` as in `TABLES`."""
    tree = StackTree()
    found = dict(tables)
    found["patterns"] = _patterns(tables["patterns"], tree)
    found["stacks"] = table_of("stacks", tree.rows())
    found["counters"] = _counters(tables["counters"])
    found["ranks"] = cast(with_absent(tables["ranks"], schema.RANKS), schema.RANKS)
    found["flows"] = cast(with_absent(tables["flows"], schema.FLOWS), schema.FLOWS)
    losses = (*manifest.losses, *_dropped(manifest, tables["ranks"]))
    return replace(manifest, schema=WINDOW_SCHEMA, losses=losses), found


def _dropped(manifest: Manifest, ranks: pa.Table) -> Iterable[Loss]:
    """Return the host's lost events, which every rank's row repeated."""
    most = max((count or 0 for count in ranks["lost_events"].to_pylist()), default=0)
    if most > 0 and not any(loss.name == EVENTS_DROPPED for loss in manifest.losses):
        yield Loss("bpf", EVENTS_DROPPED, most)


# ---- patterns --------------------------------------------------------------------------------------------------------


def _patterns(table: pa.Table, tree: StackTree) -> pa.Table:
    """Convert the table `patterns`: stacks become numbers in `tree`, and the words on the GIL's holder columns."""
    stacks, details = table["stack"].combine_chunks(), table["detail"].combine_chunks()
    leaf = _each(stacks, _numbering(tree), -1)
    holders = [_holder(text or "") for text in _words(details)]
    waits = np.array([name == "gil" for name in table["name"].to_pylist()], dtype=bool)
    code = np.where(waits, _codes(details), -1)  # index of the GIL's holder
    columns = {name: table[name] for name in table.column_names}
    columns["stack"] = pa.array(leaf, pa.int32())
    held = np.array([bool(thread) for *_, thread in holders], dtype=bool)
    said = held[code] & (code >= 0) if len(held) else waits & False
    columns["detail"] = _replaced(details, said)
    for index, name in enumerate(("holder_name", "holder_file", "holder_thread")):
        words = [(each[0], each[1], each[3])[index] for each in holders]
        columns[name] = pa.array([words[c] if s else "" for c, s in zip(code, said, strict=True)]).dictionary_encode()
    columns["holder_line"] = pa.array([holders[c][2] if s else 0 for c, s in zip(code, said, strict=True)], pa.int32())
    return cast(with_absent(pa.table(columns), schema.PATTERNS), schema.PATTERNS)


def _numbering(tree: StackTree) -> Callable[[str], int]:
    """Return a function that numbers stacks in the tree; ValueError beyond the frames of a window."""
    left = _MOST_FRAMES

    def number_of(text: str) -> int:
        """Add the stack of a text to the tree and return its number; -1 for ''."""
        nonlocal left
        frames = _frames(text)
        left -= len(frames)
        if left < 0:
            raise ValueError(f"stacks of more than {_MOST_FRAMES} frames: more than a window may have")
        return tree.add(frames)

    return number_of


def _frames(text: str) -> list[StackFrame]:
    """Parse `a (f.py:1);b (g.py:2)`, root first. A truncated frame is represented by its remains."""
    found = []
    for word in text.rsplit(";", _DEEPEST)[-_DEEPEST:]:
        name, file, line = _called(word)
        if line:
            found.append(StackFrame(name, file, int(line[:_MOST_DIGITS])))
        elif word:
            found.append(StackFrame(word, "", 0))
    return found


def _called(text: str) -> tuple[str, str, str]:
    """Parse name, file and line of `hog (job.py:7)`; line '' if it does not match."""
    head, _, tail = text.rpartition(":")
    name, opening, file = head.rpartition(" (")
    line = tail[:-1]
    return (name, file, line) if opening and tail.endswith(")") and line.isdecimal() else ("", "", "")


def _holder(text: str) -> tuple[str, str, int, str]:
    """Parse name, file, line, thread of `held by hog (job.py:7) on thread loader`; '' and 0 for
    missing parts.
    """
    said = text.removeprefix("held by ")
    if said == text or not said:
        return "", "", 0, ""
    last = deque(_PLACE_OF_HOLDER.finditer(said, 0, len(said) - 1), maxlen=1)
    place = last[0] if last else None  # the last one: names may contain anything
    name, _, file = said[: place.start()].rpartition(" (") if place is not None else ("", "", "")
    if place is None or not name or not file:
        return "", "", 0, said
    return name, file, int(place[1][:_MOST_DIGITS]), said[place.end() :]


def _process(text: str) -> tuple[str, int]:
    """Parse name and number of `python (77)`; the text and -1 if it does not match."""
    name, opening, tail = text.rpartition(" (")
    number = tail[:-1]
    if not opening or not tail.endswith(")") or not number.isdecimal():
        return text, -1
    return name, int(number[:_MOST_DIGITS])


# ---- counters --------------------------------------------------------------------------------------------------------


def _counters(table: pa.Table) -> pa.Table:
    """Convert the table `counters`: processes named in `instance` move to the columns `comm` and `pid`."""
    columns = {name: table[name] for name in table.column_names}
    instances, comms, pids = [], [], []
    for name, instance in zip(table["name"].to_pylist(), table["instance"].to_pylist(), strict=True):
        device, process = instance or "", ""
        if name == "cpu.taken_s":
            device, process = "", device
        elif (name or "").startswith("gpu.foreign_"):
            device, _, process = device.partition(" by ")
        comm, pid = _process(process)
        instances.append(device)
        comms.append(comm)
        pids.append(pid)
    columns["instance"] = pa.array(instances, pa.string())
    columns["comm"] = pa.array(comms, pa.string()).dictionary_encode()
    columns["pid"] = pa.array(pids, pa.int32())
    return cast(pa.table(columns), schema.COUNTERS)


# ---- labels ----------------------------------------------------------------------------------------------------------


def _codes(labels: pa.DictionaryArray) -> npt.NDArray[np.int64]:
    """Return by row the code of its label; -1 for null."""
    return np.asarray(labels.indices.fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _words(labels: pa.DictionaryArray) -> list[str | None]:
    """Return the texts of the labels, by code."""
    words: list[str | None] = labels.dictionary.to_pylist()
    return words


def _each(labels: pa.DictionaryArray, number_of: Callable[[str], int], without: int) -> npt.NDArray[np.int64]:
    """Compute a number for each row, once per distinct text; `without` for null."""
    numbers = np.array([*(number_of(text or "") for text in _words(labels)), without], dtype=np.int64)
    return numbers[_codes(labels)]


def _replaced(labels: pa.DictionaryArray, rows: npt.NDArray[np.bool_]) -> pa.Array:
    """Replace the labels in these rows by ''."""
    texts = labels.cast(pa.string()).to_pylist()
    kept = ["" if gone else text for text, gone in zip(texts, rows.tolist(), strict=True)]
    return pa.array(kept, pa.string()).dictionary_encode()
