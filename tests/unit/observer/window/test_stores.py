"""Windows in stores: the same through a folder and a real S3 server; what else lies there, and whatever fails."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from s3_server import KEY, SECRET, uri
from stored import NOW, same, send, windows

from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.sources import load
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import write_window
from rankscope.observer.window.store import container, objects
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.place import StoreFailed, StoreForbids, open_store
from rankscope.observer.window.store.spool import Spool
from rankscope.probes.base.errors import BadData, UsageError

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


def test_a_window_below_a_folder_that_is_named_like_a_job_of_a_store_is_read(tmp_path: Path) -> None:
    one = write_window(windows()[0], tmp_path / "job=1234")
    assert [window.manifest for window in load([one]).windows] == [windows()[0].manifest]
    assert len(load([one.parent]).windows) == 1


# ---- two windows of one host -----------------------------------------------------------------------------------------


def test_of_two_windows_of_one_host_one_is_used() -> None:
    here = windows()
    again = replace(here[0], manifest=replace(here[0].manifest, start=here[0].manifest.start + 3))
    fleet = gather([*here, again])
    assert len(fleet.ranks) == 8
    assert fleet.windows == 4
    assert [note.code for note in fleet.notes if "two windows" in note.text] == [NoteCode.HOST_TWICE]


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
        for module in ("diagnose.infer.fleet.sources", "observer.window.store.place"):
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
