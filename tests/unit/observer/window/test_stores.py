"""Windows in stores: the same through a folder and a real S3 server; what else lies there, and whatever fails. How old ones go: beside."""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import random
import stat
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from builders import Job, build
from s3_server import KEY, SECRET, uri

from rankscope.diagnose.cli.stores.sending import Sending
from rankscope.diagnose.fleet.gather import gather
from rankscope.diagnose.fleet.newest import NEWEST, newest
from rankscope.diagnose.fleet.sources import load
from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.observer.window.folder import Window
from rankscope.observer.window.manifest import Loss, ProbeCost, to_json
from rankscope.observer.window.schema import TABLES
from rankscope.observer.window.store import container, front, objects, tidy
from rankscope.observer.window.store import spool as spools
from rankscope.observer.window.store.keys import Key, key_of, parse
from rankscope.observer.window.store.place import Store, StoreFailed, StoreForbids, open_store
from rankscope.observer.window.store.spool import Spool
from rankscope.observer.window.store.summary import WANTED
from rankscope.probes.errors import BadData, OutputFailed, UsageError

NOW = 1_760_000_000.0  # when the windows of the builders begin


def windows(hosts: int = 4, **job: object) -> list[Window]:
    return build(Job(ranks=2 * hosts, hosts=hosts, steps=12, **job))  # type: ignore[arg-type]


def send(store: str, *some: Window) -> None:
    for window in some:
        objects.put(open_store(store), key_of(window.manifest), container.encode([window]))


def same(one: Window, other: Window) -> bool:
    return one.manifest == other.manifest and all(getattr(one, name).equals(getattr(other, name)) for name in TABLES)


# ---- the same through a folder and a bucket ---------------------------------------------------------------------


def test_a_window_comes_back_as_it_was(store: str) -> None:
    here = windows()
    send(store, *here)
    back = {window.manifest.host: window for window in load([store]).windows}
    assert all(same(window, back[window.manifest.host]) for window in here)
    assert len(back) == 4


def test_a_window_that_is_sent_twice_is_one(store: str) -> None:
    here = windows()
    send(store, *here, *here)
    assert len(load([store]).windows) == 4


def test_hosts_of_one_name_do_not_write_over_one_another(store: str) -> None:
    one, other = (
        replace(window, manifest=replace(window.manifest, host="localhost", machine=machine))
        for window, machine in zip(windows(hosts=2), ("3f2a77", "91bc00"), strict=True)
    )
    send(store, one, other, one)
    fleet = gather(load([store]).windows)
    assert fleet.hosts == ("localhost~3f2a", "localhost~91bc")
    assert len(fleet.ranks) == 4


def test_a_host_of_its_own_name_keeps_it(store: str) -> None:
    here = windows()[0]
    send(store, replace(here, manifest=replace(here.manifest, machine="3f2a77")))
    assert gather(load([store]).windows).hosts == (here.manifest.host,)


def test_objects_of_one_host_fit_their_budget() -> None:
    window = windows(hosts=1)[0]
    assert len(container.encode([window])) / window.ranks.num_rows < 8192


def test_of_many_moments_the_newest_that_most_hosts_have_is_read(store: str) -> None:
    for start in (NOW - 900, NOW - 600, NOW - 300):
        send(store, *windows(start=start))
    send(store, windows(start=NOW)[0])  # the others are late
    loaded = load([store])
    assert {window.manifest.start for window in loaded.windows} == {NOW - 300}
    assert len(loaded.windows) == 4
    assert [note.code for note in loaded.notes] == [NoteCode.OTHER_MOMENTS]


def test_hosts_that_had_a_window_before_and_have_none_now_are_named(store: str) -> None:
    before, now = windows(start=NOW - 300, seed=1), windows(start=NOW)
    send(store, *before[:3], *now[:2], now[3])
    [text] = [note.text for note in load([store]).notes if note.code is NoteCode.HOSTS_MISSING]
    assert text.endswith(f"from: {before[2].manifest.host} (ranks 4, 5)")


def test_foreign_and_half_written_objects_are_left_out_and_counted(store: str) -> None:
    here = windows()
    send(store, *here)
    opened = open_store(store)
    whole = container.encode(here[:1])
    objects.put(opened, key_of(here[0].manifest), whole[: len(whole) // 2])
    objects.put(opened, key_of(here[1].manifest), b"<html>503 Slow Down</html>")
    objects.put(opened, "README.txt", b"what these are")
    loaded = load([store])
    assert {window.manifest.host for window in loaded.windows} == {window.manifest.host for window in here[2:]}
    told = [note.text for note in loaded.notes if note.code is NoteCode.OBJECTS_LEFT_OUT]
    assert any("and 1 more" in text for text in told)
    notes = gather(loaded.windows).notes
    assert any(note.code is NoteCode.RANKS_MISSING and note.text.startswith("4 of 8") for note in notes)


@pytest.mark.parametrize("lie", ["host", "moment"])
def test_an_object_under_one_hosts_name_that_speaks_for_another_is_left_out(store: str, lie: str) -> None:
    """Where each host may write under its own name alone, that is all it can speak for."""
    here = windows()
    send(store, *here[:3])
    name = here[3].manifest if lie == "host" else replace(here[2].manifest, start=here[2].manifest.start + 60)
    objects.put(open_store(store), key_of(name), container.encode([here[2]]))
    loaded = load([store], every_moment=True)
    assert {each.manifest.host for each in loaded.windows} == {each.manifest.host for each in here[:3]}
    (told,) = (note.text for note in loaded.notes if note.code is NoteCode.OBJECTS_LEFT_OUT)
    assert "another host's or moment's than its window" in told


def test_a_store_without_a_readable_window_is_one_line(store: str) -> None:
    objects.put(open_store(store), key_of(windows()[0].manifest), b"nothing")
    with pytest.raises(BadData, match="none of 1 windows can be read"):
        load([store])


JUNK = "job=job-a/window={}/shard=00/{}.parquet"
BEFORE, AFTER = (
    "20251009T085000Z",
    "20251009T090000Z",
)  # ten minutes before and after 08:53:20 or later, when the windows begin


@pytest.mark.parametrize(
    "junk",
    [
        [JUNK.format(BEFORE, "hosts=400-aaaa")],
        [JUNK.format(AFTER, "hosts=400-aaaa")],
        [JUNK.format(AFTER, f"hosts={at}-aaaa") for at in range(400, 410)],
        [JUNK.format(BEFORE, f"host-{at}") for at in range(9)],
        [JUNK.format(f"20251009T0900{at:02d}Z", "host-1") for at in range(5, 50, 5)],
    ],
    ids=["one before", "one after", "ten that claim many", "nine of another moment", "nine moments"],
)
def test_what_is_no_window_hides_no_windows_of_a_job(store: str, junk: list[str]) -> None:
    here = windows()
    send(store, *here)
    for key in junk:
        objects.put(open_store(store), key, b"x")
    loaded = load([store])
    assert {each.manifest.host for each in loaded.windows} == {each.manifest.host for each in here}
    [told] = [note.text for note in loaded.notes if note.code is NoteCode.OBJECTS_LEFT_OUT]
    assert "no window" in told
    assert ("more" in told) == (len(junk) > 1)


def test_an_object_of_one_window_does_not_stand_for_the_many_that_its_name_says(store: str) -> None:
    here = windows()
    send(store, *here)
    [earlier, *_] = windows(start=NOW - 300)
    folder = key_of(earlier.manifest).rpartition("/")[0]
    objects.put(open_store(store), f"{folder}/hosts=400-aaaa.parquet", container.encode([earlier] * 8))
    assert {each.manifest.start for each in load([store]).windows} == {NOW}


def test_of_a_moment_that_tells_the_truth_little_is_read_twice(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in (NOW - 300, NOW):
        send(store, *windows(hosts=40, start=start))
    tidy.compact(open_store(store), NOW + 7200)
    send(store, *windows(hosts=40, start=NOW + 300))
    get, read = objects.get, Counter[str]()

    def counted(there: Store, path: str) -> bytes:
        read[path] += 1
        return get(there, path)

    monkeypatch.setattr(objects, "get", counted)
    assert len(load([store]).windows) == 40
    assert (len(read), read.total()) == (40, 41)


def of_one_host(moment: int, host: int) -> objects.Found:
    return objects.Found(f"{moment}/{host}", Key("job-a", moment, "00", f"host-{host}"), 9, moment + 20.0)


def of_many_hosts(moment: int, number: int, hosts: int = 100) -> objects.Found:
    return objects.Found(f"{moment}/hosts={hosts}-{number}", Key("job-a", moment, "00", "", hosts), 9, moment + 20.0)


@pytest.mark.parametrize("kind", [of_one_host, of_many_hosts])
def test_of_moments_of_which_nothing_can_be_read_few_are_looked_at(kind: Callable[[int, int], objects.Found]) -> None:
    """As where a diagnoser is older than its observers: hosts and moments without end, and each look a call to a store."""
    there = [kind(60 * moment, number) for moment in range(1, 21) for number in range(200)]
    calls: list[list[objects.Found]] = []

    def unreadable(some: Sequence[objects.Found]) -> list[int]:
        calls.append([*some])
        return [0] * len(some)

    best = newest(there, unreadable, [])
    assert best.chosen == {each.path for each in there if each.key.start == 1200}
    assert len(calls) <= 2 * NEWEST and sum(map(len, calls)) <= 16 * NEWEST


def test_a_moment_in_which_one_object_of_many_can_be_read_is_judged_and_few_are_looked_at() -> None:
    there = [of_one_host(60 * moment, host) for moment in (1, 2) for host in range(200)]
    looked = Counter[str]()

    def of_some(some: Sequence[objects.Found]) -> list[int]:
        looked.update(each.path for each in some)
        return [int(each.key.host.endswith("0")) for each in some]

    best = newest(there[1:], of_some, [])
    assert best.chosen == {each.path for each in there if each.key.start == 120}
    assert looked.total() <= 16


def test_names_that_claim_many_hosts_hide_none_that_say_the_truth() -> None:
    junk = [of_many_hosts(120, number, 400) for number in range(9)]
    there = [of_many_hosts(60 * moment, number) for moment in (1, 2) for number in range(125)]
    notes: list[Note] = []
    best = newest([*there, *junk], lambda some: [0 if each in junk else each.key.hosts for each in some], notes)
    assert best.chosen == {each.path for each in [*there, *junk] if each.key.start == 120}
    lost = newest([*there, *junk], lambda some: [each.key.hosts * (each.key.start == 60) for each in some], notes)
    assert lost.chosen == {each.path for each in there if each.key.start == 60}
    assert [note.text.partition("judge another; ")[2] for note in notes] == [
        "",
        "1 are passed over, as nothing that was looked at of them can be read",
    ]


def test_a_moment_in_which_many_lie_a_little_does_not_use_up_the_looks_at_others() -> None:
    """One claims a million hosts, hundreds claim more than they have."""
    lies = [of_many_hosts(120, 0, 1_000_000), *(of_many_hosts(120, number, 100) for number in range(1, 300))]
    there = [of_many_hosts(60, number, 10) for number in range(100)]
    true = {each.path: each.key.hosts for each in there}
    true |= {each.path: 3 if number % 2 else 0 for number, each in enumerate(lies)}
    true |= {each.path: 100 for each in lies[1::40]}
    looked: list[str] = []

    def in_truth(some: Sequence[objects.Found]) -> list[int]:
        looked.extend(each.path for each in some)
        return [true[each.path] for each in some]

    best = newest([*there, *lies], in_truth, [])
    assert best.chosen == {each.path for each in there}
    assert len(looked) <= 16 * NEWEST


def test_windows_put_together_are_the_same_windows(store: str) -> None:
    here = windows(hosts=40)
    send(store, *here)
    opened = open_store(store)
    before = {window.manifest.host: window for window in load([store]).windows}
    done = tidy.compact(opened, NOW + 7200)
    assert done.removed > done.made > 0
    assert len(objects.listing(opened).objects) == 40 - done.removed + done.made
    after = {window.manifest.host: window for window in load([store]).windows}
    assert before.keys() == after.keys()
    assert all(same(before[host], after[host]) for host in before)
    again = tidy.compact(opened, NOW + 7200)
    assert (again.removed, again.made) == (0, 0)


def test_putting_together_that_was_stopped_is_finished_the_next_time(store: str) -> None:
    here = windows(hosts=40)
    send(store, *here)
    opened = open_store(store)
    tidy.compact(opened, NOW + 7200)
    several = [found for found in objects.listing(opened).objects if not found.key.host]
    send(store, *here)  # as if none of the small ones had been removed
    assert len(load([store]).windows) == 40
    done = tidy.compact(opened, NOW + 7200)
    assert done.made == 0
    assert {found.path for found in several} <= {found.path for found in objects.listing(opened).objects}
    assert len(load([store]).windows) == 40


def test_what_speaks_for_another_host_is_not_put_together_with_that_ones(store: str) -> None:
    """Of what is put together nobody asks any more whose name it was under."""
    mine, theirs = (
        replace(window, manifest=replace(window.manifest, host="localhost", machine=machine))
        for window, machine in zip(windows(hosts=2), ("3f2a77", "91bc00"), strict=True)
    )
    send(store, mine, theirs)
    # GIVEN under one host's own name, before the other's by path, a window that says it is the other's
    [first, second] = sorted((mine, theirs), key=lambda each: key_of(each.manifest))
    liar, victim = first.manifest, second.manifest
    lie = replace(first, manifest=victim)
    objects.put(open_store(store), key_of(liar), container.encode([lie]))
    third = replace(first, manifest=replace(liar, machine="ffffff"))
    send(store, third)
    # WHEN
    done = tidy.compact(open_store(store), NOW + 7200)
    # THEN it stays where it is, and is told
    assert [path.rpartition("/")[2] for path in done.unreadable] == [key_of(liar).rpartition("/")[2]]
    assert (done.removed, done.made) == (2, 1)
    back = {window.manifest.machine: window for window in load([store]).windows}
    assert back.keys() == {victim.machine, "ffffff"} and back[victim.machine].ranks.equals(second.ranks)


def test_what_begins_now_is_not_put_together_yet(store: str) -> None:
    send(store, *windows(hosts=40))
    assert tidy.compact(open_store(store), NOW + 60).removed == 0


# ---- folders ----------------------------------------------------------------------------------------------------------


def test_objects_in_a_folder_are_for_their_owner_alone(tmp_path: Path) -> None:
    send((tmp_path / "store").as_uri(), *windows())
    for path in (tmp_path / "store").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600)
    assert not list((tmp_path / "store").rglob(".partial*"))


def test_a_folder_of_objects_is_read_by_its_plain_path_too(tmp_path: Path) -> None:
    here = windows()
    send(tmp_path.as_uri(), *here)
    assert len(load([tmp_path]).windows) == 4
    assert len(load([next(tmp_path.glob("job=*/window=*"))]).windows) == 4
    assert len(load([next(tmp_path.rglob("*.parquet"))]).windows) == 1


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
        ("window", lambda old: pa.nulls(len(old), pa.int32()), "not all is said"),
        ("own_s", lambda old: pa.array([[]] * len(old), pa.list_(pa.float32())), "not all is said"),
        ("wait_s", lambda old: pa.nulls(len(old), pa.list_(pa.float32())), "not all is said"),
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
    with pytest.raises(ValueError, match="more than those of windows"):
        front.unfolded(b"[" + thing * (most + 1) + thing[:-1] + b"]")


def test_forged_manifests_of_a_summary_and_of_a_footer_make_a_bad_object(monkeypatch: pytest.MonkeyPatch) -> None:
    data = container.encode(windows())
    monkeypatch.setattr(front, "_OPENED_MOST", 20)
    for read in (container.decode, container.decode_summary, lambda one: container.decode_parts(one, WANTED)):
        with pytest.raises(BadData, match="more than those of windows"):
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
        with pytest.raises(ValueError, match="more than those of windows"):
            front.unfolded(refused.encode())
    with pytest.raises(ValueError, match="utf-8"):
        front.unfolded(json.dumps(["\u2222" * 3], ensure_ascii=False).encode("utf-16"))


# ---- two windows of one host -----------------------------------------------------------------------------------------


def test_of_two_windows_of_one_host_one_is_used() -> None:
    here = windows()
    again = replace(here[0], manifest=replace(here[0].manifest, start=here[0].manifest.start + 3))
    fleet = gather([*here, again])
    assert len(fleet.ranks) == 8
    assert fleet.windows == 4
    assert [note.code for note in fleet.notes if "two windows" in note.text] == [NoteCode.HOST_TWICE]


# ---- the spool ------------------------------------------------------------------------------------------------------


def quiet(_: float) -> None:
    """No pause in tests."""


def test_what_is_spooled_arrives_and_leaves(store: str, tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", store)
    keys = [spool.add(window) for window in windows()]
    done = spool.deliver(1.0, pause=quiet)
    assert (sorted(done.sent), done.waiting, done.trouble) == (sorted(keys), 0, "")
    assert len(load([store]).windows) == 4
    assert spool.deliver(1.0, pause=quiet).sent == ()


def test_nothing_is_lost_while_the_store_is_away(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spool = Spool(tmp_path / "spool", uri(server, tmp_path.name))
    for window in windows():
        spool.add(window)
    put, tries = objects.put, []

    def failing(*given: object) -> None:
        tries.append(1)
        if len(tries) % 3:
            raise StoreFailed("in the middle of an upload")
        put(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(objects, "put", failing)
    assert spool.deliver(0.0, pause=quiet).waiting == 4
    pauses: list[float] = []
    done = spool.deliver(60.0, pause=pauses.append, chance=random.Random(1))
    assert (len(done.sent), done.waiting) == (4, 0)
    assert len(set(pauses)) == len(pauses) > 4  # each of its own length
    assert len(load([spool.uri]).windows) == 4


def test_a_few_hosts_send_at_once_and_many_by_chance(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", (tmp_path / "store").as_uri())
    of_few: list[float] = []
    of_many: list[float] = []
    for at in range(20):
        spool.deliver(5.0, pause=of_few.append, chance=random.Random(at), spread_s=0.002)
        spool.deliver(5.0, pause=of_many.append, chance=random.Random(at))
    assert max(of_few) <= 0.002
    assert max(of_many) - min(of_many) > 1.0


def test_the_spool_is_bounded_and_the_next_window_says_what_went(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    size = len(container.encode(windows()[:1]))
    spool = Spool(tmp_path / "spool", store, most_bytes=3 * size + size // 2)
    for at in range(9):
        spool.add(windows(start=NOW + 60 * at)[0])
    assert spool.deliver(1.0, pause=quiet).waiting == 0
    kept = sorted(load([store], every_moment=True).windows, key=lambda window: window.manifest.start)
    assert kept[-1].manifest.start == NOW + 480
    assert len(kept) <= 3
    spool.add(windows(start=NOW + 540)[0])
    spool.deliver(1.0, pause=quiet)
    last = load([store]).windows[0]
    assert sum(loss.count for window in [*kept, last] for loss in window.manifest.losses if loss.source == "spool") == (
        9 - len(kept)
    )
    told = last.manifest.losses[-1]
    assert told == Loss("spool", "thrown_out", told.count)  # with what those told that were thrown out later


def test_windows_of_one_job_throw_out_none_of_another(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    size = len(container.encode(windows()[:1]))
    spool = Spool(tmp_path / "spool", store, most_bytes=5 * size + size // 2)
    spool.add(windows(start=NOW, name="ours")[0])
    for at in range(1, 9):
        spool.add(windows(start=NOW + 60 * at, name="crowd")[0])
    spool.deliver(1.0, pause=quiet)
    kept = Counter(window.manifest.jobs[0] for window in load([store], every_moment=True).windows)
    assert kept["ours"] == 1 and kept["crowd"] > 1


def of_jobs(spool: Spool, jobs: int) -> list[str]:
    """The keys of a window of each of so many jobs, which wait."""
    return [spool.add(windows(name=f"job-{at}")[0]) for at in range(jobs)]


def test_what_lies_in_the_way_of_one_job_keeps_no_other_from_the_store(tmp_path: Path) -> None:
    # GIVEN a folder that all may write, in which somebody has made a file and a link that are called as jobs are
    shared, spool = tmp_path / "shared", Spool(tmp_path / "spool", (tmp_path / "shared").as_uri())
    shared.mkdir()
    keys = of_jobs(spool, 4)
    (shared / keys[0].partition("/")[0]).write_text("")
    (shared / keys[2].partition("/")[0]).symlink_to(tmp_path / "elsewhere")
    if not os.geteuid():
        os.lchown(shared / keys[2].partition("/")[0], 65534, 65534)
    pauses: list[float] = []
    # WHEN
    done = spool.deliver(60.0, pause=pauses.append)
    # THEN all else goes, at once, and what stays is told
    assert sorted(done.sent) == [keys[1], keys[3]]
    assert (done.waiting, len(pauses)) == (2, 1)
    assert done.trouble
    assert len(load([spool.uri]).windows) == 2


@pytest.mark.parametrize("error", [StoreForbids, StoreFailed])
def test_a_prefix_that_a_bucket_refuses_keeps_no_other_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[StoreFailed]
) -> None:
    spool = Spool(tmp_path / "spool", (tmp_path / "store").as_uri())
    refused, *others = of_jobs(spool, 4)
    put, tried = objects.put, Counter[str]()

    def choosy(store: object, key: str, data: bytes) -> None:
        tried[key] += 1
        if key == refused:
            raise error("not this one")
        put(store, key, data)  # type: ignore[arg-type]

    monkeypatch.setattr(objects, "put", choosy)
    done = spool.deliver(60.0, pause=quiet)
    assert sorted(done.sent) == others
    assert (done.waiting, done.trouble) == (1, "not this one")
    assert tried[refused] <= 3


def test_a_window_that_the_disk_does_not_give_keeps_no_other_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = Spool(tmp_path / "spool", (tmp_path / "store").as_uri())
    lost, *others = of_jobs(spool, 3)
    read = spools._read

    def sick(place: int, name: str) -> bytes:
        if name == lost.replace("/", "!"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(place, name)

    monkeypatch.setattr(spools, "_read", sick)
    done = spool.deliver(60.0, pause=quiet)
    assert (sorted(done.sent), done.waiting) == (others, 1)
    assert "cannot be read: Input/output error" in done.trouble


@pytest.mark.parametrize(("error", "most"), [(StoreForbids, 16), (StoreFailed, 25)])
def test_a_store_that_is_wholly_away_is_not_tried_for_each_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[StoreFailed], most: int
) -> None:
    spool = Spool(tmp_path / "spool", (tmp_path / "store").as_uri())
    of_jobs(spool, 30)
    tried: list[str] = []
    now_s = [0.0]

    def away(store: object, key: str, data: bytes) -> None:
        tried.append(key)
        raise error("away")

    def pause(seconds: float) -> None:
        now_s[0] += max(seconds, 2.5)

    monkeypatch.setattr(objects, "put", away)
    monkeypatch.setattr(spools, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    done = spool.deliver(60.0, pause=pause)
    assert (done.sent, done.waiting, done.trouble) == ((), 30, "away")
    assert 1 < len(tried) <= most


def test_a_window_is_kept_while_another_observer_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(container.encode(windows()[:1]))
    spool = Spool(tmp_path / "spool", (tmp_path / "store").as_uri(), most_bytes=2 * size + size // 2)
    for at in range(2):
        spool.add(windows(start=NOW + 60 * at)[0])
    told_by, listdir = spools._told_by, os.listdir

    def then_sent(place: int, name: str) -> int:
        found = told_by(place, name)
        os.unlink(name, dir_fd=place)
        return found

    # WHEN what was listed is gone as it is looked at, and what is to be thrown out as it is
    monkeypatch.setattr(spools, "_told_by", then_sent)
    monkeypatch.setattr(spools.os, "listdir", lambda place: [*listdir(place), "job=a!gone.parquet"])
    key = spool.add(windows(start=NOW + 120)[0])
    monkeypatch.undo()
    # THEN it waits, and says of nothing that it was lost
    done = spool.deliver(1.0, pause=quiet)
    assert key in done.sent and done.waiting == 0
    spool.add(windows(start=NOW + 180)[0])
    spool.deliver(1.0, pause=quiet)
    assert not any(window.manifest.losses for window in load([spool.uri], every_moment=True).windows)


def test_nobody_waits_for_an_observer_that_holds_the_spool_and_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.probes.host.folders.LOCK_WAIT_S", 0.2)
    spool = Spool(tmp_path / "spool", (tmp_path / "store").as_uri())
    spool.prepare()
    with (spool.folder / "lock").open("r") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        raised: list[BaseException] = []

        def prepare() -> None:
            try:
                spool.prepare()
            except OutputFailed as error:
                raised.append(error)

        waits = threading.Thread(target=prepare, daemon=True)
        waits.start()
        waits.join(10)
        assert not waits.is_alive() and "is locked by another process" in str(raised[0])


def test_record_says_where_its_windows_are_and_what_still_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rankscope.diagnose.cli.stores.sending._WITHIN_S", 0.0)
    store = (tmp_path / "store").as_uri()
    sending = Sending(store, tmp_path / "spool")
    where = sending.keep(windows()[0])
    assert sending.deliver() is None
    assert [window.manifest.host for window in load([where]).windows] == [windows()[0].manifest.host]
    away = Sending(uri("127.0.0.1:9", "x"), tmp_path / "spool")
    assert SECRET not in away.keep(windows()[1])
    trouble = away.deliver()
    assert trouble is not None
    assert "cannot be reached: 1 window waits in" in str(trouble)
    assert SECRET not in str(trouble)


def test_the_spool_is_for_its_owner_alone(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", (tmp_path / "store").as_uri())
    spool.add(windows()[0])
    assert stat.S_IMODE(spool.folder.stat().st_mode) == 0o700
    assert {stat.S_IMODE(path.stat().st_mode) for path in spool.folder.iterdir()} == {0o600}


# ---- stores that fail --------------------------------------------------------------------------------------------------


def refused(do: Callable[[], object]) -> str:
    with pytest.raises((StoreFailed, UsageError)) as caught:
        do()
    text = f"{caught.value} {caught.value.help}"
    assert KEY not in text
    assert SECRET not in text
    assert "\n" not in text
    return str(caught.value)


def test_a_store_that_cannot_be_reached_says_so_without_credentials() -> None:
    nowhere = uri("127.0.0.1:9", "x")
    assert "cannot be reached" in refused(lambda: load([nowhere]))


def test_a_bucket_that_is_not_there_says_so(server: str) -> None:
    other = uri(server, "x").replace("@windows/", "@nobodys/")
    opened = open_store(other)
    assert "not there" in refused(lambda: objects.put(opened, "job=a/x", b""))


def test_a_store_that_forbids_says_so_and_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Forbidding:
        def open_output_stream(self, path: str) -> None:
            raise OSError(f"AWS Error ACCESS_DENIED during PutObject operation: key {KEY} {SECRET} is not authorized")

    there = replace(open_store("s3://b/c?region=us-east-1"), filesystem=Forbidding())
    monkeypatch.setattr("rankscope.observer.window.store.spool.open_store", lambda _: there)
    spool = Spool(tmp_path / "spool", "s3://b/c")
    spool.add(windows()[0])
    waits: list[float] = []
    done = spool.deliver(60.0, pause=waits.append)
    assert (done.waiting, len(waits)) == (1, 1)
    assert "refuses" in done.trouble
    assert KEY not in done.trouble
    with pytest.raises(StoreForbids):
        objects.put(there, "job=a/x", b"")


@pytest.mark.parametrize("text", ["nosuch://a/b", "s3:///x", f"s3://{KEY}:{SECRET}@b/x?password={SECRET}", "s3://[/x"])
def test_an_address_that_is_none_is_wrong_usage(text: str) -> None:
    refused(lambda: open_store(text))


def test_a_listing_that_lies_costs_only_what_is_gone(store: str) -> None:
    here = windows()
    send(store, *here)
    opened = open_store(store)
    there = objects.listing(opened)
    gone = there.objects[0].path

    class Lying:
        def get_file_info(self, asked: object) -> object:
            found = opened.filesystem.get_file_info(asked)
            if isinstance(found, list):
                objects.remove(opened, gone)
            return found

        def __getattr__(self, name: str) -> object:
            return getattr(opened.filesystem, name)

    files = objects._files

    def then_gone(top: Path) -> Iterator[tuple[str, int]]:
        found = list(files(top))
        objects.remove(opened, gone)
        return iter(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(objects, "_files", then_gone)
        for module in ("diagnose.fleet.sources", "observer.window.store.place"):
            patch.setattr(f"rankscope.{module}.open_store", lambda _: replace(opened, filesystem=Lying()))
        loaded = load([store])
    assert len(loaded.windows) == 3
    assert "gone since it was listed" in loaded.notes[0].text


def test_credentials_of_the_environment_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    opened = open_store("s3://bucket/path?region=us-east-1")

    class Chatty:
        def get_file_info(self, _: object) -> None:
            raise OSError(f"something odd with {SECRET}")

    assert "something odd" in refused(lambda: objects.listing(replace(opened, filesystem=Chatty())))
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == SECRET
