"""Windows of other hosts: Parquet pages and tables, manifests, whole windows of both versions, timings that somebody published."""

from __future__ import annotations

import errno
import io
import json
import lzma
import os
import tarfile
import tempfile
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from campaignkit.fuzz.place import place
from campaignkit.fuzz.target import Target, swapped
from rankscope.diagnose.infer.fleet.timings.steps_file import read_timings
from rankscope.observer.window import bundle, folder, schema, upgrade
from rankscope.observer.window.manifest import FIRST_SCHEMA, WINDOW_SCHEMA
from rankscope.observer.window.pages import page_sizes
from rankscope.observer.window.store import container, front
from rankscope.observer.window.tables import read_table, write_table
from rankscope.probes.base.errors import BadData, RankscopeError

_DOCUMENTED = (OSError, pa.ArrowException, ValueError, MemoryError)  # what read_window makes one line of
_FEW_ROWS = 1000
_OLD, _NEW = tuple(upgrade.TABLES), tuple(schema.TABLES)
_WORDS = (
    b"PAR1", b"\x15\x00\x15\x10\x15\x10", b"\xff\xff\xff\xff\x0f", b"\xff" * 9 + b"\x7f", b"\x15\x04\x15", b"\x19\x1c", b"\x00\x00\x00\x00",
)  # fmt: skip


def _value(kind: pa.DataType, row: int) -> Any:
    if pa.types.is_dictionary(kind) or pa.types.is_string(kind):
        return ("", "train.py (a.py:7);step (b.py:9)", "held by hog (job.py:7) on thread loader")[row % 3]
    if pa.types.is_list(kind):
        return [_value(kind.value_type, row)] * row
    if pa.types.is_boolean(kind):
        return bool(row % 2)
    return float(row) if pa.types.is_floating(kind) else row


def sample(of: pa.Schema, rows: int = 3) -> pa.Table:
    """A table with something of everything in it."""
    return pa.Table.from_arrays(
        [pa.array([_value(field.type, row) for row in range(rows)], field.type) for field in of], schema=of
    )


@lru_cache(maxsize=1)
def _files() -> dict[str, dict[str, bytes]]:
    """The files of a whole window, by the version of its schema."""
    found: dict[str, dict[str, bytes]] = {}
    for version, of in ((FIRST_SCHEMA, upgrade.TABLES), (WINDOW_SCHEMA, schema.TABLES)):
        files: dict[str, bytes] = {}
        for name, columns in of.items():
            table = sample(columns)
            if name == "stacks":
                table = table.set_column(
                    table.column_names.index("parent"), columns.field("parent"), pa.array([-1, 0, 1], pa.int32())
                )
            buffer = io.BytesIO()
            write_table(table, buffer)
            files[f"{name}.parquet"] = buffer.getvalue()
        said = {"schema": version, "host": "a", "start": 1.7e9, "seconds": 20.0, "jobs": ["j"], "notes": ["n"],
                "rows": dict.fromkeys(of, 3), "losses": [{"source": "bpf", "name": "ring_full", "count": 1}], "sampling_hz": 99.0,
                "costs": [{"program": "p", "run_count": 1, "run_time_ns": 2}]}  # fmt: skip
        files[folder.MANIFEST] = json.dumps(said).encode()
        found[version] = files
    return found


def _write(name: str, data: bytes) -> Path:
    path = place() / name
    path.write_bytes(data)
    return path


def _table(data: bytes) -> None:
    """The first byte says which table it is to be. Its values are looked at, as those who judge do."""
    if not data:
        return
    of = schema.TABLES[_NEW[data[0] % len(_NEW)]]
    try:
        table = read_table(_write("table.parquet", data[1:]), of)
    except _DOCUMENTED:
        return
    try:
        table = folder.fitted(table, of, "it")
    except BadData:
        return
    if table.num_rows <= _FEW_ROWS:
        table.to_pylist()


def _uncompressed(of: pa.Schema) -> bytes:
    """As another writer may write it; mutations reach what is inside."""
    buffer = io.BytesIO()
    pq.write_table(sample(of), buffer, compression="none", store_schema=False)
    return buffer.getvalue()


@lru_cache(maxsize=2)
def _whole(version: str) -> tuple[Path, dict[str, pa.Table]]:
    """A folder with the files of a window, and its tables by the names of their files, as they are when they were read."""
    home = place() / version.replace("/", "-")
    home.mkdir()
    kept: dict[str, pa.Table] = {}
    for name, content in _files()[version].items():
        (home / name).write_bytes(content)
    for name, of in (upgrade.TABLES if version == FIRST_SCHEMA else schema.TABLES).items():
        path = home / f"{name}.parquet"
        kept[path.name] = folder.fitted(read_table(path, of), of, str(path))
    return home, kept


def _window(version: str) -> Callable[[bytes], None]:
    """A whole window of which one file, by the first byte, is the input. The others are read once, not each time."""

    def run(data: bytes) -> None:
        if not data:
            return
        home, kept = _whole(version)
        name = sorted(_files()[version])[data[0] % len(_files()[version])]
        changed = _write("changed", data[1:])
        fitted = folder.fitted

        def read_changed(path: Path, of: pa.Schema) -> pa.Table:
            if path == changed:
                return read_table(path, of)
            if path.name not in kept:  # a manifest may say that its window is of the other version
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
            return kept[path.name]

        def fit_changed(table: pa.Table, of: pa.Schema, where: str) -> pa.Table:
            # What is kept fits its own version; the changed one may be a manifest that says another.
            return table if where != str(changed) and table.schema.equals(of) else fitted(table, of, where)

        with swapped(folder, "read_table", read_changed), swapped(folder, "fitted", fit_changed):
            folder.read_files(home, lambda one: changed if one == name else home / one)

    return run


def _of_window(version: str) -> list[bytes]:
    return [bytes((number,)) + content for number, (_, content) in enumerate(sorted(_files()[version].items()))]


def _objects() -> list[bytes]:
    """A window, and two, as objects of a store."""
    home = place() / "to-encode"
    home.mkdir(exist_ok=True)
    for name, content in _files()[WINDOW_SCHEMA].items():
        (home / name).write_bytes(content)
    window = folder.read_window(home)
    return [container.encode([window]), container.encode([window, window])]


def _summaries() -> list[bytes]:
    """What lies in the summaries of these objects, unpacked, behind how long its manifests are."""
    found = []
    for data in _objects():
        at = len(data) - front.ending_bytes(data)
        packed, unpacked, told, _ = front.ENDING.unpack_from(data, at)
        plain = pa.decompress(data[at - packed : at], decompressed_size=unpacked, codec="zstd", asbytes=True)
        found.append(int(told).to_bytes(4, "little") + plain)
    return found


def _summary(data: bytes) -> None:
    plain = data[4:]
    packed = pa.compress(plain, codec="zstd", asbytes=True)
    ending = front.ENDING.pack(len(packed), len(plain), int.from_bytes(data[:4], "little"), front.MARK)
    container.decode_summary(packed + ending + bytes(4) + b"PAR1")


def _manifest(data: bytes) -> None:
    home = place() / "manifest"
    home.mkdir(exist_ok=True)
    (home / folder.MANIFEST).write_bytes(data)
    folder.read_manifest(home / folder.MANIFEST)


def _sentences(data: bytes) -> None:
    """What windows of the first version say in sentences."""
    text = data.decode("utf-8", "replace")
    upgrade._frames(text)
    upgrade._holder(text)
    upgrade._process(text)


_ROWS = "rank,step,function,kind,seconds,role,host,count,waits\n0,1,f,python,0.5,a,h,1,false\n"
_ROWS += "1,1,all_reduce,nccl,0.25,a,h,2,\n1,1,f,cpu,nan,,,,yes\n"


def _steps(data: bytes) -> None:
    timings = read_timings(_write("steps", data))
    if not len(timings):
        raise AssertionError("no rows and no error")


def _published() -> list[bytes]:
    table = pa.table({
        "rank": [0, 1], "step": [1, 1], "function": ["f", "g"], "kind": ["python", "gpu"], "seconds": [0.5, 0.25], "waits": [True, False],
    })  # fmt: skip
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="none")
    return [
        _ROWS.encode(),
        _ROWS.replace(",", ";").encode(),
        _ROWS.replace(",", "\t").encode(),
        b"\xef\xbb\xbf" + _ROWS.encode(),
        buffer.getvalue(),
    ]


@lru_cache(maxsize=1)
def _known() -> dict[tuple[str, bytes], pa.Table]:
    """The tables of the whole window by name and content of their files, as they are when they were read."""
    _, kept = _whole(WINDOW_SCHEMA)
    files = _files()[WINDOW_SCHEMA]
    return {(name, files[name]): table for name, table in kept.items()}


# Little to make ready: with a preset, that takes longer than a small bundle.
_QUICK_XZ = ({"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 4096, "mf": lzma.MF_HC3, "depth": 1},)


def _bundle(data: bytes) -> None:
    """What is in the xz: nothing that is changed at random would still be one. Of its files those that are changed are parsed."""
    known = _known()
    as_they_were = {id(table) for table in known.values()}
    fitted = folder.fitted

    def read_changed(path: Path, of: pa.Schema) -> pa.Table:
        # A window that says it is of the first version has other tables of the same names.
        ours = of is schema.TABLES.get(path.stem)
        found = known.get((path.name, path.read_bytes())) if ours else None
        return read_table(path, of) if found is None else found

    def fit_changed(table: pa.Table, of: pa.Schema, where: str) -> pa.Table:
        return table if id(table) in as_they_were else fitted(table, of, where)

    packed = lzma.compress(data, check=lzma.CHECK_CRC32, filters=_QUICK_XZ)
    with (
        swapped(folder, "read_table", read_changed),
        swapped(folder, "fitted", fit_changed),
        swapped(tempfile, "tempdir", str(place())),
    ):
        bundle.read_bundle(_write("bundle", packed))


def _archive() -> list[bytes]:
    about = json.dumps({"schema": bundle.BUNDLE_SCHEMA, "windows": 1, "baseline": 0}).encode()
    files = {"bundle.json": about, **{f"0/{name}": content for name, content in _files()[WINDOW_SCHEMA].items()}}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return [buffer.getvalue()]


def _before_a_member(kind: bytes, content: bytes) -> bytes:
    """A header of a tar that tells something of the member after it."""
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, len(content)
    return member.tobuf(tarfile.GNU_FORMAT) + content.ljust(512, b"\0")


TARGETS = (
    Target(
        "pages",
        "headers of Parquet pages",
        page_sizes,
        lambda: [b"\x15\x00\x15\x10\x15\x10\x2c\x15\x06\x15\x00\x15\x06\x15\x06\x00\x00"],
        raises=(ValueError,),
        words=(b"\x1c", b"\x19\xfc\xff\xff\xff\x0f", b"\x19\x1c", b"\xff\xff\xff\xff\x0f", b"\x15\x02", b"\x00"),
    ),
    Target(
        "parquet",
        "one table of a window",
        _table,
        lambda: [bytes((number,)) + _uncompressed(schema.TABLES[name]) for number, name in enumerate(_NEW)],
        longest_bytes=16384,
        words=_WORDS,
    ),
    Target(
        "manifest",
        "manifests of windows",
        _manifest,
        lambda: [files[folder.MANIFEST] for files in _files().values()],
        words=(
            b"{",
            b"[",
            b'"',
            b"NaN",
            b"Infinity",
            b"9" * 400,
            b"9" * 4400,
            b"\\ud800",
            b"null",
            b'"rows"',
            b'"jobs"',
            b'{"a":',
        ),
        longest_bytes=8192,
    ),
    Target(
        "window",
        "whole windows",
        _window(WINDOW_SCHEMA),
        lambda: _of_window(WINDOW_SCHEMA),
        raises=(BadData,),
        longest_bytes=16384,
        words=_WORDS,
    ),
    Target(
        "window-1",
        "whole windows of the first version",
        _window(FIRST_SCHEMA),
        lambda: _of_window(FIRST_SCHEMA),
        raises=(BadData,),
        longest_bytes=16384,
        words=_WORDS,
    ),
    Target(
        "object",
        "windows as objects of a store",
        container.decode,
        _objects,
        raises=(BadData,),
        longest_bytes=32768,
        words=_WORDS,
    ),
    Target(
        "summary",
        "what objects of a store say of their windows in short",
        _summary,
        _summaries,
        raises=(BadData,),
        longest_bytes=32768,
        words=_WORDS,
    ),
    Target(
        "bundle",
        "windows that somebody sends in one file",
        _bundle,
        _archive,
        raises=(RankscopeError,),
        longest_bytes=1 << 19,
        words=(
            *(
                _before_a_member(kind, content)
                for kind, content in ((b"L", b"a\0"), (b"x", b"12 path=abcd\n"), (b"g", b"12 path=abcd\n"))
            ),
            b"12 size=-512\n",
            b"\xff" * 12,
        ),
    ),
    Target(
        "sentences",
        "what windows of the first version say in sentences",
        _sentences,
        lambda: [b"a (f.py:1);b (g.py:2)", b"held by hog (job.py:7) on thread loader", b"python (77)"],
        longest_bytes=32768,
        words=(b" (", b":1)", b"held by ", b" on ", b"thread ", b";", b"(", b":", b"a (b:1) on ", b"\n"),
    ),
    Target(
        "steps",
        "timings that somebody published, as CSV and Parquet",
        _steps,
        _published,
        raises=(BadData,),
        longest_bytes=8192,
        words=(b",", b";", b"\t", b'"', b"\n", b"rank", b"nan", b"1e308", b"9" * 400, b"PAR1", b"\r", *_WORDS[1:3]),
    ),
)
