"""Objects of a store: their names, and what nobody can have written."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from stored import same, windows

from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import ProbeCost, to_json
from rankscope.observer.window.schema import TABLES
from rankscope.observer.window.store import container, front
from rankscope.observer.window.store.keys import key_of, parse
from rankscope.observer.window.store.summary import WANTED
from rankscope.probes.base.errors import BadData

# ---- names ----------------------------------------------------------------------------------------------------------


def test_names_that_look_alike_as_files_are_not_the_same_object() -> None:
    manifest = windows()[0].manifest
    texts = ["node/1", "node_1", "node 1", "n" * 200, "n" * 201, "ä", "..", "", "hosts=3-abc", "a~b"]
    keys = [key_of(replace(manifest, host=host)) for host in texts] + [
        key_of(replace(manifest, jobs=(job,))) for job in texts
    ]
    assert len(set(keys)) == len(keys)
    for key in keys:
        found = parse(f"bucket/prefix/{key}")
        assert found is not None
        assert found.start == int(manifest.start)
        assert max(map(len, key.split("/"))) < 100


@pytest.mark.parametrize(
    "path", ["a.parquet", "job=a/window=b/shard=00/h.parquet", "job=a/window=20250101T000000Z/h.parquet", ""]
)
def test_what_is_no_object_of_ours_is_known_by_its_name(path: str) -> None:
    assert parse(path) is None


# ---- forged -----------------------------------------------------------------------------------------------------------


def forged(window: Window, column: str, cell: bytes) -> bytes:
    """An object in which one table is something else."""
    data = container.encode([window])
    table = pq.read_table(pa.BufferReader(data))
    metadata = pq.ParquetFile(pa.BufferReader(data)).metadata.metadata
    table = table.set_column(table.column_names.index(column), column, pa.array([cell], pa.binary()))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata({b"rankscope.windows": metadata[b"rankscope.windows"]})
    return sink.getvalue().to_pybytes()


def stream(table: pa.Table, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("cell", "said"),
    [
        (stream(windows()[0].steps, compression="zstd"), "packed table"),
        (stream(pa.table({"rank": pa.nulls(1 << 26)})), "type null"),
        (stream(pa.table({"rank": pa.array([1], pa.int32())})), "lacks the column"),
        (b"", "no window"),
        (b"\xff" * 64, "no window"),
    ],
)
def test_a_table_that_would_unpack_or_is_none_is_refused(cell: bytes, said: str) -> None:
    with pytest.raises(BadData, match=said):
        container.decode(forged(windows()[0], "steps", cell))


def test_every_broken_object_is_one_line() -> None:
    whole = container.encode(windows()[:1])
    rng = random.Random(7)
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            container.decode(bytes(data[: rng.randint(1, len(data))]))
        except BadData as error:
            assert "\n" not in str(error)
        try:
            container.decode_summary(bytes(data))
        except BadData as error:
            assert "\n" not in str(error)


def without_summary(data: bytes) -> bytes:
    """An object as it was written before there were summaries."""
    at = len(data) - front.ending_bytes(data)
    return data[: at - front.ENDING.unpack_from(data, at)[0]] + data[at + front.ENDING.size :]


def test_what_an_object_says_in_short_is_what_its_tables_say() -> None:
    data = container.encode(windows())
    said, computed = container.decode_summary(data), container.decode_summary(without_summary(data))
    assert said.ranks.equals(computed.ranks)
    assert [about.host for about in said.manifests] == [about.host for about in computed.manifests]
    steps = pa.concat_tables([window.steps for window in windows()])
    assert said.ranks["own_s"].combine_chunks().flatten().equals(steps["own_s"].combine_chunks())
    assert [same(one, other) for one, other in zip(container.decode(data), windows(), strict=True)] == [True] * 4


@pytest.mark.parametrize(
    ("column", "values", "said"),
    [
        ("window", lambda old: pa.array([4096] * len(old), pa.int32()), "not there"),
        ("window", lambda old: pa.array([-1] * len(old), pa.int32()), "not there"),
        ("window", lambda old: pa.nulls(len(old), pa.int32()), "incomplete"),
        ("own_s", lambda old: pa.array([[]] * len(old), pa.list_(pa.float32())), "incomplete"),
        ("wait_s", lambda old: pa.nulls(len(old), pa.list_(pa.float32())), "incomplete"),
    ],
)
def test_a_forged_summary_is_refused(column: str, values: Callable[[pa.Array], pa.Array], said: str) -> None:
    data = container.encode(windows()[:1])
    true = container.decode_summary(data)
    forged = true.ranks.set_column(true.ranks.column_names.index(column), column, values(true.ranks[column]))
    lying = front.with_summary(without_summary(data), front.Summary(true.manifests, forged), 1)
    with pytest.raises(BadData, match=said):
        container.decode_summary(lying)
    assert container.decode(lying)


@pytest.mark.parametrize("cell", [pa.nulls(1, pa.binary()), pa.array([7]), pa.array(["ranks"]), pa.array([[b"x"]])])
@pytest.mark.parametrize("table", ["ranks", "steps"])
def test_a_cell_that_holds_no_table_makes_a_bad_object_and_no_crash(table: str, cell: pa.Array) -> None:
    whole = pq.read_table(io.BytesIO(container.encode(windows()[:1])))
    sink = io.BytesIO()
    with pq.ParquetWriter(
        sink, (forged := whole.set_column(whole.column_names.index(table), table, cell)).schema
    ) as writer:
        writer.write_table(forged)
        writer.add_key_value_metadata({container._MANIFESTS: whole.schema.metadata[container._MANIFESTS]})
    for read in (container.decode, container.decode_summary, lambda data: container.decode_parts(data, WANTED)):
        with pytest.raises(BadData):
            read(sink.getvalue())


def test_a_footer_that_counts_otherwise_makes_a_bad_object_and_no_crash() -> None:
    data = container.encode(windows()[:2], brief=True)
    begins = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    refused = 0
    for at in range(begins, len(data) - 8):
        for number in {2: (0, 4), 4: (0, 2, 6)}.get(data[at], ()):  # one and two, as Parquet writes them
            for read in (container.decode, container.decode_summary, lambda one: container.decode_parts(one, WANTED)):
                try:
                    read(data[:at] + bytes((number,)) + data[at + 1 :])
                except BadData:
                    refused += 1
    assert refused >= 20


def test_a_summary_takes_no_more_room_than_it_may() -> None:
    data = bytearray(container.encode(windows()[:1]))
    at = len(data) - front.ending_bytes(data) + 4  # how long it is unpacked
    for claim in (0xFFFFFFFF, (64 << 20) + 1, 63 << 20, 1, 0):
        data[at : at + 4] = claim.to_bytes(4, "little")
        with pytest.raises(BadData):
            container.decode_summary(bytes(data))


@pytest.mark.parametrize(
    ("thing", "most"), [(b"[],", front._OPENED_MOST), (b"{},", front._OPENED_MOST), (b"1,", front._COMMAS_MOST)]
)
def test_manifests_of_millions_of_things_are_refused_before_they_are_unfolded(
    thing: bytes, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few hundred bytes may unpack to 64 MB of empty lists, which take 1.5 GB."""
    monkeypatch.setattr(front.json, "loads", lambda _: pytest.fail("unfolded"))
    with pytest.raises(ValueError, match="unknown content"):
        front.unfolded(b"[" + thing * (most + 1) + thing[:-1] + b"]")


def test_forged_manifests_of_a_summary_and_of_a_footer_make_a_bad_object(monkeypatch: pytest.MonkeyPatch) -> None:
    data = container.encode(windows())
    monkeypatch.setattr(front, "_OPENED_MOST", 20)
    for read in (container.decode, container.decode_summary, lambda one: container.decode_parts(one, WANTED)):
        with pytest.raises(BadData, match="unknown content"):
            read(data)


def test_manifests_of_as_many_windows_as_an_object_has_are_not_refused() -> None:
    """With 60 programs that ran: twice as many as beside a job on CPUs."""
    about = replace(windows(1)[0].manifest, costs=tuple(ProbeCost(f"rs_enter_{n}", n, n) for n in range(60)))
    said = json.dumps([to_json(about, dict.fromkeys(TABLES, 9))] * front.MOST_WINDOWS).encode()
    assert len(front.unfolded(said)) == front.MOST_WINDOWS


def test_text_with_commas_and_brackets_is_no_reason_to_refuse_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "_OPENED_MOST", 3)
    monkeypatch.setattr(front, "_COMMAS_MOST", 3)
    said = [{"notes": ["{[,,,", 'a \\" \\\\', ",,,[{\\", ""]}]
    assert front.unfolded(json.dumps(said).encode()) == said
    said[0]["notes"] += ["", ""]
    for refused in (json.dumps(said), json.dumps([[[[]]]])):
        with pytest.raises(ValueError, match="unknown content"):
            front.unfolded(refused.encode())
    with pytest.raises(ValueError, match="utf-8"):
        front.unfolded(json.dumps(["\u2222" * 3], ensure_ascii=False).encode("utf-16"))
