"""What waits on the disk for its store: nothing is lost, nothing in the way, nobody waits."""

from __future__ import annotations

import errno
import fcntl
import os
import random
import stat
import threading
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from s3_server import SECRET, uri
from stored import NOW, windows

from rankscope.diagnose.face.cli.stores.sending import Sending
from rankscope.diagnose.infer.fleet.sources import load
from rankscope.observer.window.manifest import Loss
from rankscope.observer.window.store import container, objects
from rankscope.observer.window.store import spool as spools
from rankscope.observer.window.store.place import StoreFailed, StoreForbids
from rankscope.observer.window.store.spool import Spool
from rankscope.probes.base.errors import OutputFailed


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


def test_windows_of_a_clock_that_was_ahead_throw_out_none_of_now(tmp_path: Path) -> None:
    store = (tmp_path / "store").as_uri()
    size = len(container.encode(windows()[:1]))
    spool = Spool(tmp_path / "spool", store, most_bytes=3 * size + size // 2)
    for at in range(3):
        spool.add(windows(start=NOW + 86400 + 60 * at)[0])
    for path in spool.folder.glob("*.parquet"):
        os.utime(path, (time.time() + 86400,) * 2)
    for at in range(2):
        spool.add(windows(start=NOW + 60 * at)[0])
    spool.deliver(1.0, pause=quiet)
    kept = {window.manifest.start for window in load([store], every_moment=True).windows}
    assert {NOW, NOW + 60} < kept


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
    monkeypatch.setattr(spools, "time", SimpleNamespace(monotonic=lambda: now_s[0], time=time.time))
    done = spool.deliver(60.0, pause=pause)
    assert (done.sent, done.waiting, done.trouble) == ((), 30, "away")
    assert 1 < len(tried) <= most


def test_a_window_is_kept_while_another_observer_sends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(container.encode(windows()[:1]))
    spool = Spool(tmp_path / "spool", (tmp_path / "store").as_uri(), most_bytes=2 * size + size // 2)
    for at in range(2):
        spool.add(windows(start=NOW + 60 * at)[0])
    told_by, listdir = spools._drops_reported_by, os.listdir

    def then_sent(place: int, name: str) -> int:
        found = told_by(place, name)
        os.unlink(name, dir_fd=place)
        return found

    # WHEN what was listed is gone as it is looked at, and what is to be thrown out as it is
    monkeypatch.setattr(spools, "_drops_reported_by", then_sent)
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
    monkeypatch.setattr("rankscope.probes.base.folders.LOCK_WAIT_S", 0.2)
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
    monkeypatch.setattr("rankscope.diagnose.face.cli.stores.sending._WITHIN_S", 0.0)
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
