"""The summary of an object's windows, stored before its footer: the first pass over a fleet reads nothing else.

 … columns | packed summary | packed and unpacked length | MARK | footer | its length | PAR1

Parquet readers ignore it. It contains the manifests, without costs, and one record batch
(summary.SCHEMA). It is untrusted like the whole object: its sizes are checked before memory is
allocated, and each value before it is used.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from rankscope.observer.window.manifest import WINDOW_SCHEMA, Manifest, from_json, to_json
from rankscope.observer.window.store.summary import SCHEMA, STEP_COLUMNS, WINDOW, summary_of
from rankscope.observer.window.tables import LONGEST_TEXT_BYTES, ROWS_MOST, check_rows, check_texts

# the last character is the version; other versions are ignored, and the tables are read
MARK = b"RKSUMRY1"
ENDING = struct.Struct("<IIQ8s")  # packed bytes, unpacked bytes, bytes of the manifests, MARK
_FOOTER_ENDING = struct.Struct("<I4s")
MOST_WINDOWS = 4096  # per object; with a million ranks a shard has 500 hosts
_MOST_BYTES = 64 << 20  # unpacked; 500 hosts take 6 MB. A larger one is not written
_ALIGNED = 8
# Limits of objects and commas in the manifests of one object, counted before they are parsed: the
# least of them takes 64 bytes. A window has 30 and 90 of them, with many programs twice as many.
_OPENED_MOST, _COMMAS_MOST = 128 * MOST_WINDOWS, 512 * MOST_WINDOWS
_TEXTS = [field.name for field in SCHEMA if pa.types.is_string(field.type)]


@dataclass(frozen=True, slots=True)
class Summary:
    """The summary of an object's windows; `ranks` has the columns of summary.SCHEMA."""

    manifests: tuple[Manifest, ...]
    ranks: pa.Table


def summarised(manifests: Sequence[Manifest], windows: Sequence[Mapping[str, pa.Table]]) -> Summary:
    """Summarise windows with these tables (at least summary.WANTED)."""
    return Summary(tuple(manifests), summary_of(windows, [about.seconds for about in manifests]))


def with_summary(data: bytes, summary: Summary, level: int) -> bytes:
    """Insert the summary into an object; unchanged where it would be too large."""
    said = json.dumps([to_json(replace(about, costs=()), {}) for about in summary.manifests]).encode()
    said += b" " * (-len(said) % _ALIGNED)
    [batch] = summary.ranks.combine_chunks().to_batches() or [pa.RecordBatch.from_pylist([], SCHEMA)]
    plain = said + batch.serialize().to_pybytes()
    if len(plain) > _MOST_BYTES:
        return data
    packed = pa.Codec("zstd", level).compress(plain, asbytes=True)
    at = _footer_at(data)
    return b"".join((data[:at], packed, ENDING.pack(len(packed), len(plain), len(said), MARK), data[at:]))


def summary_in(data: bytes, refuse_packed: Callable[[bytes], None]) -> Summary | None:
    """Read the summary in an object; None where it has none of this version.

    `refuse_packed`: called with a message's metadata, raises if it is compressed. Raises
    ValueError, KeyError, TypeError, ArrowException.
    """
    at = len(data) - ending_bytes(data)
    if at < 0:
        return None
    packed, unpacked, told, mark = ENDING.unpack_from(data, at)
    if mark != MARK:
        return None
    if not (packed <= at and told <= unpacked <= _MOST_BYTES):
        raise ValueError("a summary that is larger than it can be")
    plain = pa.Codec("zstd").decompress(pa.py_buffer(data)[at - packed : at], decompressed_size=unpacked)
    if plain.size != unpacked:
        raise ValueError("a summary that is not as long as it says")
    manifests = unfolded(plain[:told].to_pybytes())
    if not isinstance(manifests, list) or len(manifests) > MOST_WINDOWS:
        raise ValueError("a summary without manifests")
    if any(not isinstance(each, dict) or each.get("schema") != WINDOW_SCHEMA for each in manifests):
        raise ValueError(f"a summary of a window of another schema than {WINDOW_SCHEMA}")
    message = pa.ipc.read_message(plain[told:])
    refuse_packed(message.metadata.to_pybytes())
    batch = pa.ipc.read_record_batch(message, SCHEMA)
    batch.validate(full=True)
    _check(batch, len(manifests))
    if unpacked - told > LONGEST_TEXT_BYTES:
        check_texts(pa.Table.from_batches([batch.select(_TEXTS)]))
    return Summary(tuple(from_json(each)[0] for each in manifests), pa.Table.from_batches([batch]))


def unfolded(said: bytes) -> Any:
    """Parse JSON of manifests, within limits. Raises ValueError, RecursionError."""
    if _is_much(said) and _is_much(_without_texts(said)):
        raise ValueError("manifests with unknown content")
    # as it was counted: from bytes, any encoding would be accepted
    return json.loads(str(said, "utf-8"))


def _is_much(said: bytes) -> bool:
    """Tell whether JSON has more brackets or commas than the manifests of one object may have."""
    return said.count(b"{") + said.count(b"[") > _OPENED_MOST or said.count(b",") > _COMMAS_MOST


def _without_texts(said: bytes) -> bytes:
    """Return JSON without the texts in quotation marks, so that commas in file names do not count."""
    data = np.frombuffer(said.replace(rb"\\", b"  ").replace(rb"\"", b"  "), np.uint8)
    return data[~np.logical_xor.accumulate(data == ord('"'))].tobytes()


def _check(batch: pa.RecordBatch, windows: int) -> None:
    """Check a summary: complete steps, window numbers below `windows`, not too many ranks. Raises ValueError."""
    lists = [batch.column(name) for name in STEP_COLUMNS]
    window = batch.column(WINDOW)
    if window.null_count or any(column.null_count for column in lists):
        raise ValueError("a summary with incomplete ranks")
    if any(not column.offsets.equals(lists[0].offsets) for column in lists[1:]):
        raise ValueError("a summary with incomplete steps")
    number = window.to_numpy()
    if len(number) and not 0 <= number.min() <= number.max() < windows:
        raise ValueError("a summary of windows that are not there")
    if len(number) > ROWS_MOST["ranks"]:
        check_rows("ranks", int(np.bincount(number).max()))


def ending_bytes(data: bytes) -> int:
    """Return how many bytes before the object's end a summary's ending begins, if it has one.

    More than the object's length where there is no room for one.
    """
    at = _footer_at(data)
    return len(data) - at + ENDING.size if at >= 0 else len(data) + 1


def _footer_at(data: bytes) -> int:
    """Return the position of a Parquet file's footer; -1 where there is none."""
    if len(data) < _FOOTER_ENDING.size:
        return -1
    length, magic = _FOOTER_ENDING.unpack_from(data, len(data) - _FOOTER_ENDING.size)
    return len(data) - _FOOTER_ENDING.size - int(length) if magic == b"PAR1" else -1
