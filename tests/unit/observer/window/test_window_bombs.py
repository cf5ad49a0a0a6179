"""A window that would take more memory than it may is refused before it is unpacked, whatever its footer says."""

from __future__ import annotations

import io
import resource
import shutil
import subprocess
import sys
from dataclasses import replace
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
from rankscope.probes.base.errors import BadData


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


def varint(number: int) -> bytes:
    """As Thrift's compact protocol writes it."""
    low, more = number & 0x7F, number >> 7
    return bytes((low | 0x80,)) + varint(more) if more else bytes((low,))


def test_a_page_header_takes_no_more_steps_than_it_has_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of lists of truth values, each of which says that it is as long as the header."""
    header = b"\x19\xf9" + varint(330) + (b"\xf1" + varint(1000)) * 330
    steps: list[int] = []
    skip = pages._Compact.skip

    def counted(self: pages._Compact, kind: int, depth: int) -> None:
        steps.append(kind)
        skip(self, kind, depth)

    monkeypatch.setattr(pages._Compact, "skip", counted)
    with pytest.raises(ValueError, match="absurdly many"):
        pages.page_sizes(header)
    assert len(steps) <= len(header)


def test_truth_values_in_a_list_take_a_byte_each() -> None:
    with_a_list = b"\x15\x00\x15\x02\x15\x04\x19\x31\x01\x02\x01\x00"
    assert pages.page_sizes(with_a_list) == (0, 1, 2, len(with_a_list))


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets an item for each page whose header is read."""
    seen: list[int] = []
    page_sizes = pages.page_sizes

    def counted(data: bytes) -> tuple[int, int, int, int]:
        seen.append(1)
        return page_sizes(data)

    monkeypatch.setattr(pages, "page_sizes", counted)
    return seen


def small_pages(columns: int) -> io.BytesIO:
    """A file with ten pages in each of its columns."""
    table = pa.table({f"column {at}": pa.array(range(10), pa.int64()) for at in range(columns)})
    file = io.BytesIO()
    pq.write_table(table, file, use_dictionary=False, data_page_size=1, write_batch_size=1, compression="none")
    return file


def test_columns_that_share_pages_are_refused_before_each_has_been_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    file = small_pages(1)
    footer = pages.read_footer(file)
    seen = looked_at(monkeypatch)
    pages.check_pages(file, footer, 1 << 20, ())
    assert len(seen) == 10
    with pytest.raises(ValueError, match="absurdly many pages"):
        pages.check_pages(file, replace(footer, chunks=footer.chunks * 1000), 1 << 20, ())
    assert len(seen) < 100


def test_pages_of_all_columns_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    file = small_pages(4)
    footer = pages.read_footer(file)
    pages.check_pages(file, footer, 1 << 20, ())
    monkeypatch.setattr(pages, "_MOST_PAGES", 25)
    with pytest.raises(ValueError, match="absurdly many pages"):
        pages.check_pages(file, footer, 1 << 20, ())


@pytest.mark.parametrize(
    "inside",
    [
        pytest.param(b"\x1c\x00" * 60, id="structs"),
        pytest.param(b"\x16\x02" * 60, id="fields"),
        pytest.param(b"\x19\x9c" + b"\x1c\x00" * 4 + b"\x1c\x1c\x00\x00" * 9 + b"\x00" * 50, id="lists"),
    ],
)
def test_a_footer_takes_no_more_room_than_it_may(inside: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    footer = b"\x16\x00" + inside + b"\x00"
    file = io.BytesIO(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert pages.read_footer(file).rows <= 1
    monkeypatch.setattr(pages, "_MOST_PARTS", 20)
    with pytest.raises(ValueError, match="absurdly many"):
        pages.read_footer(file)


def said_to_have_one_row(table: pa.Table, in_group: int) -> bytes:
    """Of a table of a thousand rows, in groups, a file whose footer counts one."""
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=in_group, store_schema=False)
    data = sink.getvalue()
    begins = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[begins:]
    thousand, one = b"\x16" + varint(2000) + b"\x19", b"\x16\x82\x00\x19"
    assert footer.count(thousand) == 1
    return data[:begins] + footer.replace(thousand, one)


def test_rows_of_all_groups_count_whatever_the_footer_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "stacks").write_bytes(said_to_have_one_row(pa.table({"parent": pa.array(range(1000))}), 200))
    with (tmp_path / "stacks").open("rb") as file:
        footer = pages.read_footer(file)
    assert (footer.rows, footer.most_rows) == (1, 1000)
    monkeypatch.setattr(tables, "MOST_ROWS", 500)
    with pytest.raises(ValueError, match="more than a window may have"):
        read_table(tmp_path / "stacks", TABLES["stacks"])


def test_many_rows_in_few_bytes_count_as_long_as_they_will_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = pa.DictionaryArray.from_arrays(pa.array([0] * 100_000, pa.int32()), pa.array(["f"]))
    pq.write_table(pa.table({"name": words}), tmp_path / "stacks")
    monkeypatch.setattr(tables, "MOST_BYTES", 200_000)
    with pytest.raises(ValueError, match="more than a window may have"):
        read_table(tmp_path / "stacks", TABLES["stacks"])


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
    text += "from rankscope.probes.base.errors import BadData\n"
    text += "import random; random.seed(5); path = Path(sys.argv[1]) / 'stacks.parquet'; content = path.read_bytes()\n"
    text += "for _ in range(300):\n    data = bytearray(content)\n"
    text += "    for _ in range(3): data[random.randrange(len(data))] = random.randrange(256)\n"
    text += "    path.write_bytes(data)\n    try: read_window(path.parent)\n    except BadData: pass\n"
    assert content
    subprocess.run([sys.executable, "-c", text, str(folder)], check=True, timeout=60)
