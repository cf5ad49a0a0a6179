"""A window that would take more memory than it may is refused before it is unpacked, whatever its footer says."""

from __future__ import annotations

import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rankscope.observer.window import pages, tables
from rankscope.observer.window.folder import Window, read_window, write_window
from rankscope.observer.window.manifest import WINDOW_SCHEMA, Manifest
from rankscope.observer.window.rows import StackRow
from rankscope.observer.window.schema import TABLES
from rankscope.observer.window.tables import read_table, table_of, write_table
from rankscope.probes.errors import BadData


def a_window(into: Path) -> Path:
    manifest = Manifest(WINDOW_SCHEMA, "host", 1.7e9, 20.0, ("job",), "0.1")
    return write_window(Window(manifest, **{name: table_of(name, []) for name in TABLES}), into)


def stacks(path: Path, count: int) -> None:
    """One column, `count` chunks of 64 MB of zeros in some kilobytes each."""
    schema = pa.schema([("parent", pa.int64())])
    chunk = pa.table({"parent": pa.array([0]).take(pa.nulls(0, pa.int64()))}, schema=schema)
    zeros = pa.Table.from_arrays([pa.repeat(pa.scalar(0, pa.int64()), 1 << 23)], schema=schema)
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        writer.write_table(chunk)
        for _ in range(count):
            writer.write_table(zeros, row_group_size=1 << 23)


def test_a_gigabyte_and_more_in_a_small_file_are_refused_in_little_memory_and_time(tmp_path: Path) -> None:
    folder = a_window(tmp_path)
    stacks(tmp_path / "bomb", 20)
    one = (tmp_path / "bomb").stat().st_size
    assert one < 8 << 20  # twenty chunks, 1.3 GB
    shutil.copy(tmp_path / "bomb", folder / "stacks.parquet")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(BadData, match="more than a window may have"):
        read_window(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


def test_a_footer_that_tells_less_than_its_pages_hold_is_not_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stacks(tmp_path / "bomb", 2)
    monkeypatch.setattr(tables, "MOST_BYTES", 100 << 20)
    monkeypatch.setattr(tables, "_check_footer", lambda footer: None)
    with pytest.raises(ValueError, match="pages of more"):
        read_table(tmp_path / "bomb", TABLES["stacks"])


def test_a_long_word_in_every_row_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One word of a megabyte in a dictionary, two thousand rows that name it."""
    rows = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * (1 << 20)]))
    pq.write_table(pa.table({"name": rows}), tmp_path / "bomb", compression="zstd")
    with pytest.raises(ValueError, match="of text"):
        read_table(tmp_path / "bomb", TABLES["stacks"])


def test_pages_are_as_large_as_the_writer_says(tmp_path: Path) -> None:
    rows = [StackRow(number - 1, f"function {number}", "/job/train.py", number) for number in range(3000)]
    with (tmp_path / "stacks").open("wb") as file:
        write_table(table_of("stacks", rows), file)
    theirs = pq.ParquetFile(tmp_path / "stacks").metadata
    columns = [theirs.row_group(0).column(place) for place in range(4)]
    said = sum(one.total_uncompressed_size for one in columns)
    with (tmp_path / "stacks").open("rb") as file:
        footer = pages.read_footer(file)
        assert [(one.name, one.values, one.packed_bytes, one.pages_at) for one in footer.chunks] == [
            (one.path_in_schema, one.num_values, one.total_compressed_size, one.data_page_offset) for one in columns
        ]
        assert (footer.rows, sum(one.unpacked_bytes for one in footer.chunks)) == (3000, said)
        pages.check_pages(file, footer, said, ("name", "file"))
        with pytest.raises(ValueError, match="pages of more"):
            pages.check_pages(file, footer, said // 2, ("name", "file"))
    assert read_table(tmp_path / "stacks", TABLES["stacks"]).num_rows == 3000


@given(st.binary(max_size=300))
def test_any_bytes_are_a_page_header_or_refused(data: bytes) -> None:
    for text in (data, b"\x15\x00\x15\x02\x15\x02" + data, b"\x1c" * 40 + data):
        try:
            _, unpacked, packed, length = pages.page_sizes(text)
        except ValueError:
            continue
        assert min(unpacked, packed) >= 0
        assert length > 0


def test_damaged_windows_are_refused_in_one_line(tmp_path: Path) -> None:
    folder = a_window(tmp_path)
    content = (folder / "stacks.parquet").read_bytes()
    text = "import sys; from pathlib import Path; from rankscope.observer.window.folder import read_window\n"
    text += "from rankscope.probes.errors import BadData\n"
    text += "import random; random.seed(5); path = Path(sys.argv[1]) / 'stacks.parquet'; content = path.read_bytes()\n"
    text += "for _ in range(300):\n    data = bytearray(content)\n"
    text += "    for _ in range(3): data[random.randrange(len(data))] = random.randrange(256)\n"
    text += "    path.write_bytes(data)\n    try: read_window(path.parent)\n    except BadData: pass\n"
    assert content
    subprocess.run([sys.executable, "-c", text, str(folder)], check=True, timeout=60)
