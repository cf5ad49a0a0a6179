"""The summary of an object's windows as bytes that lie in it before its footer: a first look at a fleet opens nothing else.

    … columns | packed summary | how long, packed and unpacked | MARK | footer | its length | PAR1

A reader of Parquet does not see it. Packed are the manifests, without costs, and one record batch (summary.SCHEMA). It is what the host
says, as all of the object is: its sizes are read before room is made, and each value is looked at before it is used.
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

MARK = b"RKSUMRY1"  # the last character is the version: of another one nothing is known, and the tables are read
ENDING = struct.Struct("<IIQ8s")  # packed bytes, unpacked bytes, bytes of the manifests, MARK
_FOOTER_ENDING = struct.Struct("<I4s")
MOST_WINDOWS = 4096  # in one object; of a million ranks a shard has 500 hosts
_MOST_BYTES = 64 << 20  # unpacked; of 500 hosts 6 MB. A larger one is not written
_ALIGNED = 8
# Things and commas in the manifests of one object, which are counted before they are unfolded: the least of them takes 64 bytes. A window
# has 30 and 90 of them, with many programs twice as many.
_OPENED_MOST, _COMMAS_MOST = 128 * MOST_WINDOWS, 512 * MOST_WINDOWS
_TEXTS = [field.name for field in SCHEMA if pa.types.is_string(field.type)]


@dataclass(frozen=True, slots=True)
class Summary:
    """What an object says of its windows; `ranks` as summary.SCHEMA has it."""

    manifests: tuple[Manifest, ...]
    ranks: pa.Table


def summarised(manifests: Sequence[Manifest], windows: Sequence[Mapping[str, pa.Table]]) -> Summary:
    """The summary of windows with these tables: summary.WANTED, or more."""
    return Summary(tuple(manifests), summary_of(windows, [about.seconds for about in manifests]))


def with_summary(data: bytes, summary: Summary, level: int) -> bytes:
    """An object with the summary of its windows; as it was where that were too large."""
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
    """The summary in an object; None where it holds none that this version knows. ValueError, KeyError, TypeError, ArrowException where
    it is wrong. `refuse_packed`: raises where a message of Arrow's, by its metadata, would unpack something."""
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
    """What JSON says of windows. ValueError, RecursionError where it is none, or of more things than windows have."""
    if _is_much(said) and _is_much(_without_texts(said)):
        raise ValueError("manifests that say more than those of windows do")
    return json.loads(str(said, "utf-8"))  # as it was counted: of bytes any encoding would be read


def _is_much(said: bytes) -> bool:
    return said.count(b"{") + said.count(b"[") > _OPENED_MOST or said.count(b",") > _COMMAS_MOST


def _without_texts(said: bytes) -> bytes:
    """JSON with nothing between its quotation marks: whoever has commas in the name of a file has no window refused by it."""
    data = np.frombuffer(said.replace(rb"\\", b"  ").replace(rb"\"", b"  "), np.uint8)
    return data[~np.logical_xor.accumulate(data == ord('"'))].tobytes()


def _check(batch: pa.RecordBatch, windows: int) -> None:
    lists = [batch.column(name) for name in STEP_COLUMNS]
    window = batch.column(WINDOW)
    if window.null_count or any(column.null_count for column in lists):
        raise ValueError("a summary of ranks of which not all is said")
    if any(not column.offsets.equals(lists[0].offsets) for column in lists[1:]):
        raise ValueError("a summary with steps of which not all is said")
    number = window.to_numpy()
    if len(number) and not 0 <= number.min() <= number.max() < windows:
        raise ValueError("a summary of windows that are not there")
    if len(number) > ROWS_MOST["ranks"]:
        check_rows("ranks", int(np.bincount(number).max()))


def ending_bytes(data: bytes) -> int:
    """How long an object is from where the ending of a summary would begin; more than it is long where it has no place for one."""
    at = _footer_at(data)
    return len(data) - at + ENDING.size if at >= 0 else len(data) + 1


def _footer_at(data: bytes) -> int:
    """Where the footer of a Parquet file begins; -1 where there is none."""
    if len(data) < _FOOTER_ENDING.size:
        return -1
    length, magic = _FOOTER_ENDING.unpack_from(data, len(data) - _FOOTER_ENDING.size)
    return len(data) - _FOOTER_ENDING.size - int(length) if magic == b"PAR1" else -1
