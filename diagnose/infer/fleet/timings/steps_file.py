"""Read and check a file of timings (`--steps FILE`, Parquet or CSV) into columns.

Required: `rank` int, `step` int, `function` text, `kind` (python, gpu, memory, collective, io,
sync, sched), `seconds` float. Optional: `role` text, `host` text, `count` int (executions in this
row), `waits` bool (includes waiting for other ranks; by default true for collectives). A row is one
execution, or the sum of a step. Rows that cannot be right are counted in notes, not repaired; their
step is left out on that rank, since its rest would be too short and make others look slow. A
function with more than half of its rows unusable is left out.
"""

from __future__ import annotations

import csv
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pcsv
import pyarrow.parquet as pq

from rankscope.diagnose import budgets
from rankscope.diagnose.infer.fleet.labels import Labels
from rankscope.diagnose.infer.fleet.timings.local_numbers import global_numbers
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.diagnose.text import clean
from rankscope.observer.window.pages import check_pages, read_footer
from rankscope.observer.window.schema import KINDS
from rankscope.probes.base.arrays import Bools, Floats, Ints
from rankscope.probes.base.errors import BadData
from rankscope.probes.base.folders import open_plain


class NoTimings(BadData):
    """The file is not there, or lacks columns of timings."""

    help = "Give a Parquet or CSV file of timings: `rankscope diagnose --help` has its columns."


REQUIRED = ("rank", "step", "function", "kind", "seconds")
OPTIONAL = ("role", "host", "count", "waits")
ROWS_MOST = budgets.CELLS_MOST * 4
BYTES_MOST = ROWS_MOST << 6  # 64 a row
BROKEN_MOST = ROWS_MOST >> 10  # one callback each: 3 million took 30 s
STEP_MOST = 1 << sys.float_info.mant_dig
_ALIASES = {
    "cuda": "gpu", "kernel": "gpu", "compute": "gpu",
    "copy": "memory", "memcpy": "memory", "memset": "memory",
    "comm": "collective", "communication": "collective", "nccl": "collective", "p2p": "collective",
    "cpu": "python", "file": "io", "disk": "io", "lock": "sync",
}  # fmt: skip
_BROKEN = b"broken-lines"  # metadata key: number of lines with a wrong number of columns
_NUMBER = r"^[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d{1,3})?$"


@dataclass(frozen=True, slots=True)
class Timings:
    """Usable timings as columns; `bad_rank`, `bad_step`: the (rank, step) pairs that lost a row."""

    rank: Ints
    step: Ints
    function: Labels
    kind: Ints  # index in rankscope.observer.window.schema.KINDS
    seconds: Floats
    count: Ints
    counted: bool  # whether the file says how many executions a row stands for
    waits: Bools
    role: Labels
    host: Labels
    bad_rank: Ints
    bad_step: Ints
    notes: tuple[Note, ...]

    def __len__(self) -> int:
        return len(self.rank)

    def taken(self, rows: Bools, *notes: Note) -> Timings:
        """Select these rows, and append notes."""

        def chosen(labels: Labels) -> Labels:
            """Select the rows of one label column."""
            return Labels(labels.codes[rows], labels.values)

        return replace(
            self,
            rank=self.rank[rows],
            step=self.step[rows],
            function=chosen(self.function),
            kind=self.kind[rows],
            seconds=self.seconds[rows],
            count=self.count[rows],
            waits=self.waits[rows],
            role=chosen(self.role),
            host=chosen(self.host),
            notes=(*self.notes, *notes),
        )


def read_timings(path: Path) -> Timings:
    """Read and check one file. Raises BadData, one clear line, if nothing is usable."""
    table = _load(path)
    name = clean(path.name, 80)
    missing = [column for column in REQUIRED if column not in table.column_names]
    if missing:
        raise NoTimings(f"{name}: no column {', '.join(missing)} (needed: {', '.join(REQUIRED)})")
    if table.num_rows == 0:
        raise BadData(f"{name}: no rows")
    return check(table, name)


def check(table: pa.Table, name: str) -> Timings:
    """Select the usable rows of a table; notes count the others. `name`: of the file."""
    notes: list[Note] = []
    if broken := int((table.schema.metadata or {}).get(_BROKEN, b"0")):
        text = f"{broken} lines have another number of columns than the first and were left out"
        notes.append(Note(NoteCode.ROWS_UNUSABLE, text))
    rank, step = _numbers(table, "rank", name), _numbers(table, "step", name)
    seconds = _numbers(table, "seconds", name)
    function, kind = _texts(table, "function", name), _kinds(table, name)
    placed = _whole(rank, budgets.WORLD_MOST) & _whole(step, STEP_MOST)
    bad = _unusable(placed, function, kind, seconds, name, notes)
    useless = _useless(function, bad, placed)
    if len(useless):
        shown = ", ".join(clean(function.values[code], 40) for code in useless[:4])
        text = f"mostly unusable, so left out of every rank: {shown}{' and others' if len(useless) > 4 else ''}"
        notes.append(Note(NoteCode.FUNCTIONS_UNUSABLE, text))
    left_out = np.isin(function.codes, useless)
    keep = ~bad & ~left_out
    spoilt = bad & placed & ~left_out & (kind >= 0)  # an unknown kind does not spoil the rest of the step
    if not keep.any():
        raise BadData(f"{name}: no usable row of {table.num_rows}")
    count, counted = _counts(table, name)
    whole = np.where(placed, rank, 0).astype(np.int64), np.where(placed, step, 0).astype(np.int64)
    rows = np.flatnonzero(keep)
    if "host" in table.column_names:
        whole = global_numbers(*whole, _texts(table, "host", name), rows, notes), whole[1]
    rows = rows[~_repeated(whole[0][rows], whole[1][rows], function.codes[rows], kind[rows], seconds[rows], notes)]
    return Timings(
        rank=whole[0][rows],
        step=whole[1][rows],
        function=Labels(function.codes[rows], function.values),
        kind=kind[rows],
        seconds=seconds[rows],
        count=count[rows],
        counted=counted,
        waits=_waits(table, kind, name)[rows],
        role=_optional(table, "role", rows, name),
        host=_optional(table, "host", rows, name),
        bad_rank=whole[0][spoilt],
        bad_step=whole[1][spoilt],
        notes=tuple(notes),
    )


def _unusable(placed: Bools, function: Labels, kind: Ints, seconds: Floats, name: str, notes: list[Note]) -> Bools:
    """Mark rows that cannot be right, and add notes. Raises BadData if no row is left.

    `placed`: rows whose rank and step are valid; `name`: of the file, for messages.
    """
    reasons = (
        ("without a rank and step that are whole numbers from 0", ~placed),
        ("without a function", placed & (function.codes == function.code(""))),
        (f"of an unknown kind (known: {', '.join(KINDS)})", placed & (kind < 0)),
        ("with seconds that are no number", placed & ~np.isfinite(seconds)),
        ("with negative seconds", placed & np.isfinite(seconds) & (seconds < 0)),
        ("with absurd seconds (more than a day)", placed & np.isfinite(seconds) & (seconds > budgets.DAY_S)),
    )
    bad = np.zeros(len(placed), dtype=bool)
    why = "no rows"
    for reason, rows in reasons:
        if (fresh := int((rows & ~bad).sum())) > 0:
            notes.append(Note(NoteCode.ROWS_UNUSABLE, f"{fresh} of {len(placed)} rows {reason} were left out"))
            why = reason
        bad |= rows
    if bad.all():
        raise BadData(f"{name}: no usable row of {len(placed)} ({why})")
    return bad


# ---- reading ---------------------------------------------------------------------------------------------------------


def _load(path: Path) -> pa.Table:
    """Read the known columns of a file of timings, as Parquet or CSV by its first bytes.

    Raises NoTimings if there is no such file, BadData if it cannot be read.
    """
    name = clean(str(path), 120)
    try:
        with os.fdopen(open_plain(path), "rb") as file:
            head = file.read(65536)
            return _parquet(file, name) if head[:4] == b"PAR1" else _csv(file, head, name)
    except FileNotFoundError:
        raise NoTimings(f"{name}: no such file") from None
    except IsADirectoryError:
        raise BadData(f"{name} is a folder: --steps takes one Parquet or CSV file") from None
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        if isinstance(error, OSError) and error.strerror:
            raise BadData(f"{name} cannot be read: {error.strerror}") from None
        raise BadData(
            f"{name}: neither Parquet nor CSV: {clean(str(error).splitlines()[0] if str(error) else '', 160)}"
        ) from None


def _parquet(file: BinaryIO, name: str) -> pa.Table:
    """Read the known columns of a Parquet file, with names in lower case.

    `name`: of the file, for messages. Raises BadData if it is too large or damaged.
    """
    footer = read_footer(file)
    if footer.most_rows > ROWS_MOST:
        raise BadData(f"{name}: {footer.most_rows} rows are too many: sum them up per step first")
    check_pages(file, footer, BYTES_MOST, {chunk.name for chunk in footer.chunks})
    schema = pq.ParquetFile(file).schema_arrow
    found = {column.strip().lower(): column for column in schema.names}
    wanted = [found[column] for column in (*REQUIRED, *OPTIONAL) if column in found]
    texts = {column for column, kind in zip(schema.names, schema.types, strict=True) if pa.types.is_string(kind)}
    words = [column for column in wanted if column in texts]
    table = pq.ParquetFile(file, read_dictionary=words).read(columns=wanted)
    table.validate(full=True)  # valid UTF-8, and dictionary indices within range
    return table.select(wanted).rename_columns([column.strip().lower() for column in wanted])


def _csv(file: BinaryIO, head: bytes, path: str) -> pa.Table:
    """Read the known columns of a CSV file as text; empty if a required one is missing.

    `head`: its first bytes, which decide the separator; `path`: for messages. Lines with another
    number of columns are skipped and counted in the metadata. Raises BadData or ValueError.
    """
    if b"\0" in head:
        raise ValueError("it holds binary data")
    if os.fstat(file.fileno()).st_size > BYTES_MOST:
        raise BadData(f"{path}: more than {BYTES_MOST >> 30} GB are too many: sum its rows up per step first")
    file.seek(0)
    first = head.removeprefix(b"\xef\xbb\xbf").splitlines()[0] if head.strip() else b""
    mark = max((b",", b";", b"\t"), key=first.count)
    parts = next(csv.reader([first.decode("utf-8", "replace")], delimiter=mark.decode()), [])
    names = [part.strip().strip('"').lower() for part in parts]
    wanted = [name for name in (*REQUIRED, *OPTIONAL) if name in names]
    if not set(REQUIRED) <= set(wanted):
        return pa.table({name: pa.array([], pa.string()) for name in wanted})
    if len(set(names)) < len(names):
        names = [f"{name}#{index}" if name in names[:index] else name for index, name in enumerate(names)]
    broken: list[int] = []

    def skip(row: pcsv.InvalidRow) -> str:
        """Skip and count a line with another number of columns; an error beyond BROKEN_MOST of them."""
        broken.append(row.actual_columns)
        return "skip" if len(broken) <= BROKEN_MOST else "error"

    table = pcsv.read_csv(
        file,
        read_options=pcsv.ReadOptions(column_names=names, skip_rows=1, block_size=1 << 24),
        parse_options=pcsv.ParseOptions(delimiter=mark.decode(), invalid_row_handler=skip),
        convert_options=pcsv.ConvertOptions(
            column_types={name: pa.string() for name in wanted}, include_columns=wanted, check_utf8=True
        ),
    )
    return table.replace_schema_metadata({_BROKEN: str(len(broken))})


# ---- columns ---------------------------------------------------------------------------------------------------------


def _written_out(words: pa.DictionaryArray) -> int:
    """Bytes of a dictionary-encoded text column if written out without its dictionary.

    0 for numbers, which are no longer than their row.
    """
    if not (pa.types.is_string(words.type.value_type) or pa.types.is_large_string(words.type.value_type)):
        return 0  # numbers: no longer than their row
    used = pc.take(pc.binary_length(words.dictionary).cast(pa.int64()), words.indices)
    return int(pc.sum(used).as_py() or 0)


def _plain(table: pa.Table, column: str, name: str) -> pa.Array:
    """Return a column as one array without dictionary. Raises BadData if its texts would be absurdly long."""
    values = table[column]
    if pa.types.is_dictionary(values.type):
        if sum(map(_written_out, values.chunks)) > BYTES_MOST:
            raise BadData(f"{name}: the words of column {column} are absurdly long")
        values = values.cast(values.type.value_type)
    joined = values.combine_chunks()
    return joined if isinstance(joined, pa.Array) else pa.concat_arrays(joined.chunks)


def _numbers(table: pa.Table, column: str, name: str) -> Floats:
    """A column as floats, NaN where there is no number. Raises BadData."""
    values = _plain(table, column, name)
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        text = pc.utf8_trim_whitespace(values)
        good = pc.fill_null(pc.match_substring_regex(text, _NUMBER), False)
        values = pc.if_else(good, text, pa.scalar(None, text.type))
    elif not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type) or pa.types.is_decimal(values.type)
              or pa.types.is_null(values.type)):  # fmt: skip
        raise BadData(f"{name}: column {column} holds {clean(str(values.type), 40)}, not numbers")
    floats = pc.fill_null(values.cast(pa.float64(), safe=False), float("nan"))
    return np.asarray(floats.to_numpy(zero_copy_only=False), dtype=np.float64)


def _texts(table: pa.Table, column: str, name: str) -> Labels:
    """Read a text column as labels, trimmed and shortened; '' where it is null.

    Raises BadData if it holds no text. `name`: of the file.
    """
    values = _plain(table, column, name)
    if pa.types.is_nested(values.type) or pa.types.is_binary(values.type):
        raise BadData(f"{name}: column {column} holds {clean(str(values.type), 40)}, not text")
    try:
        texts_there = values.cast(pa.string())
    except pa.ArrowException as error:  # bytes of fixed size, an unknown time zone
        raise BadData(f"{name}: column {column} holds {clean(str(values.type), 40)}, not text") from error
    encoded = pc.fill_null(texts_there, "").dictionary_encode()
    codes = np.asarray(encoded.indices.to_numpy(zero_copy_only=False), dtype=np.int64)
    texts = [value.strip()[: budgets.TEXT_MOST] for value in encoded.dictionary.to_pylist()]
    unique = {text: index for index, text in enumerate(dict.fromkeys(texts))}
    merged = np.array([unique[text] for text in texts], dtype=np.int64)
    return Labels(merged[codes] if len(merged) else codes, tuple(unique))


def _optional(table: pa.Table, column: str, rows: Ints, name: str) -> Labels:
    """Read an optional text column at these rows; '' everywhere if the file lacks it."""
    if column not in table.column_names:
        return Labels(np.zeros(len(rows), dtype=np.int64), ("",))
    labels = _texts(table, column, name)
    return Labels(labels.codes[rows], labels.values)


def _kinds(table: pa.Table, name: str) -> Ints:
    """Index in KINDS by row; -1 for an unknown kind."""
    labels = _texts(table, "kind", name)
    known = [_ALIASES.get(value.lower(), value.lower()) for value in labels.values]
    codes = np.array([KINDS.index(value) if value in KINDS else -1 for value in known], dtype=np.int64)
    return codes[labels.codes]


def _counts(table: pa.Table, name: str) -> tuple[Ints, bool]:
    """(executions of each row, 1 where not said or impossible; whether the file says any)."""
    if "count" not in table.column_names:
        return np.ones(table.num_rows, dtype=np.int64), False
    count = _numbers(table, "count", name)
    sane = np.isfinite(count) & (count >= 1) & (count <= 1e9)
    return np.where(sane, count, 1).astype(np.int64), bool(sane.any())


def _waits(table: pa.Table, kind: Ints, name: str) -> Bools:
    """Mask of the rows that contain waiting for other ranks: by the column `waits`, else by kind.

    Without a valid value, collectives wait and other kinds do not.
    """
    by_kind: Bools = kind == KINDS.index("collective")
    if "waits" not in table.column_names:
        return by_kind
    values = _plain(table, "waits", name)
    if pa.types.is_boolean(values.type):
        said = pc.fill_null(values.cast(pa.int8()), -1).to_numpy(zero_copy_only=False)
        return np.where(said < 0, by_kind, said == 1)
    labels = _texts(table, "waits", name)
    yes = np.array([value.lower() in ("true", "1", "1.0", "yes", "t") for value in labels.values], dtype=bool)
    no = np.array([value.lower() in ("false", "0", "0.0", "no", "f") for value in labels.values], dtype=bool)
    return np.where(yes[labels.codes], True, np.where(no[labels.codes], False, by_kind))


# ---- checks ----------------------------------------------------------------------------------------------------------


def _whole(values: Floats, most: int) -> Bools:
    """Mark values that are whole numbers from 0 to `most`."""
    with np.errstate(invalid="ignore"):
        good: Bools = np.isfinite(values) & (values >= 0) & (values <= most) & (values == np.floor(values))
    return good


def _useless(function: Labels, bad: Bools, placed: Bools) -> Ints:
    """Codes of the functions with more than half of their rows bad."""
    rows = placed & (function.codes != function.code(""))
    width = len(function.values)
    every = np.bincount(function.codes[rows], minlength=width)
    spoilt = np.bincount(function.codes[rows & bad], minlength=width)
    return np.flatnonzero(spoilt > 0.5 * np.maximum(every, 1))


def _repeated(rank: Ints, step: Ints, function: Ints, kind: Ints, seconds: Floats, notes: list[Note]) -> Bools:
    """Mark rows that repeat another row, and add a note.

    Equal rows of a function in a step may be several executions. A row is a repetition if an equal
    one precedes it and its function has more rows there than in the median step; or if all rows
    occur twice.
    """
    order = np.lexsort((seconds, kind, function, step, rank))
    same_cell = (np.diff(rank[order]) == 0) & (np.diff(step[order]) == 0) & (np.diff(function[order]) == 0)
    start = np.concatenate(([True], ~same_cell))
    group = np.cumsum(start) - 1
    size = np.bincount(group)
    if int(size.max(initial=0)) <= 1:
        return np.zeros(len(rank), dtype=bool)
    owner = function[order][start]
    usual = np.ones(int(function.max()) + 1)
    by_owner = np.argsort(owner, kind="stable")
    edges = np.searchsorted(owner[by_owner], np.arange(len(usual) + 1))
    for code in range(len(usual)):
        if edges[code] < edges[code + 1]:
            usual[code] = np.median(size[by_owner[edges[code] : edges[code + 1]]])
    more = size > usual[owner]
    equal = np.concatenate(([False], same_cell & (np.diff(seconds[order]) == 0) & (np.diff(kind[order]) == 0)))
    again = equal & more[group]
    result = np.zeros(len(rank), dtype=bool)
    result[order[again]] = True
    if again.any():
        notes.append(Note(NoteCode.ROWS_TWICE, f"{int(again.sum())} duplicated rows were left out"))
    return result | _twice_over(rank, step, function, ~result, usual, notes)


def _twice_over(rank: Ints, step: Ints, function: Ints, keep: Bools, usual: Floats, notes: list[Note]) -> Bools:
    """Mark later rows of steps in which all functions have twice their usual rows (two sources).

    `keep`: rows to look at; `usual`: usual rows in a step, by function code. Adds a note.
    """
    rows = np.flatnonzero(keep)
    order = rows[np.lexsort((rows, function[rows], step[rows], rank[rows]))]
    new_step = np.concatenate(([True], (np.diff(rank[order]) != 0) | (np.diff(step[order]) != 0)))
    new = new_step | np.concatenate(([True], np.diff(function[order]) != 0))
    group, cell = np.cumsum(new) - 1, np.cumsum(new_step) - 1
    size = np.bincount(group)
    allowed = usual[function[order][new]]
    twice = size >= 2 * allowed
    cell_of_group = cell[new]
    all_twice = np.bincount(cell_of_group, weights=twice) == np.bincount(cell_of_group)
    several = np.bincount(cell_of_group) > 1  # a single function may as well have run twice
    place = np.arange(len(order)) - np.flatnonzero(new)[group]
    late = (all_twice & several)[cell] & (place >= allowed[group])
    result = np.zeros(len(rank), dtype=bool)
    result[order[late]] = True
    if late.any():
        text = f"{int((all_twice & several).sum())} steps of ranks were reported twice; the first report is used"
        notes.append(Note(NoteCode.STEPS_TWICE, text))
    return result
