"""Old windows of a store: which go, beside whom, and when a clock is not believed. Through a folder and a real S3 server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from builders import Job, build
from pyarrow import fs

from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.infer.fleet.sources import load
from rankscope.observer.window.folder import Window
from rankscope.observer.window.store import container, objects, tidy
from rankscope.observer.window.store.age import ClockInDoubt, Clocks, old_in
from rankscope.observer.window.store.keys import key_of, parse
from rankscope.observer.window.store.objects import Found, Listing
from rankscope.observer.window.store.place import Store, open_store
from rankscope.observer.window.store.tidy import Tidied

DAY_S = 86_400.0
LIMIT_S = 30 * DAY_S
NOW = time.time()  # objects come when they are put, and no test can say otherwise to a bucket


def at(days: float) -> float:
    return NOW + days * DAY_S


def windows(days: float, hosts: int = 4) -> list[Window]:
    return build(Job(ranks=2 * hosts, hosts=hosts, steps=12, start=at(days)))


def send(store: Store, *some: Window) -> list[str]:
    for window in some:
        objects.put(store, key_of(window.manifest), container.encode([window]))
    return [f"{store.path}/{key_of(window.manifest)}" for window in some]


def prune(store: Store, days: float = 61.0, *, dry: bool = False) -> Tidied:
    """As it is so many days from now, by both clocks."""
    return tidy.prune(store, LIMIT_S, Clocks(at(days), at(days)), dry=dry)


def there(store: Store) -> set[str]:
    return {found.path for found in objects.listing(store).objects}


def test_old_windows_go_and_young_ones_stay(store: str) -> None:
    opened = open_store(store)
    old, young = send(opened, *windows(-10)), send(opened, *windows(50))
    objects.put(opened, "notes.txt", b"mine")
    assert prune(opened, dry=True).removed == 4
    assert there(opened) == {*old, *young}
    first = prune(opened)
    assert (first.removed, first.foreign) == (4, 1)
    assert there(opened) == {*young}
    assert prune(opened).removed == 0
    assert len(load([store]).windows) == 4


def test_nothing_is_left_where_old_windows_were(store: str) -> None:
    opened = open_store(store)
    old = {path.rpartition("/")[0] for path in send(opened, *windows(-10))}
    send(opened, *windows(50))
    assert prune(opened).removed == 4
    assert folders(opened) and not old & folders(opened)
    assert len({path for path in folders(opened) if path.rpartition("/")[2].startswith("window=")}) == 1


def folders(store: Store) -> set[str]:
    inside = store.filesystem.get_file_info(fs.FileSelector(store.path, recursive=True))
    return {info.path for info in inside if info.type == fs.FileType.Directory}


def test_what_one_that_was_stopped_left_empty_goes_the_next_time(store: str) -> None:
    opened = open_store(store)
    old, _ = send(opened, *windows(-10)), send(opened, *windows(50))
    for path in old:  # and then it was killed
        objects.remove(opened, path)
    assert any("window=" in folder and old[0].startswith(folder) for folder in folders(opened))
    assert prune(opened).removed == 0
    assert not any("window=" in folder and old[0].startswith(folder) for folder in folders(opened))


def test_what_is_no_window_stays_where_old_ones_were(store: str) -> None:
    opened = open_store(store)
    beside = send(opened, *windows(-10))[0].rpartition("/")[0]
    send(opened, *windows(50))
    with opened.filesystem.open_output_stream(f"{beside}/notes.txt") as stream:
        stream.write(b"mine")
    assert prune(opened).removed == 4
    assert opened.filesystem.get_file_info(f"{beside}/notes.txt").type == fs.FileType.File


# ---- beside others ------------------------------------------------------------------------------------------------------


def test_who_writes_while_old_windows_go_is_not_disturbed(tmp_path: Path) -> None:
    store = open_store((tmp_path / "store").as_uri())
    one = windows(-90)[0]
    key, data, until = key_of(one.manifest), container.encode([one]), time.monotonic() + 2.0
    path = f"{store.path}/{key}"

    def repeat() -> None:
        while time.monotonic() < until:
            tidy.prune(store, LIMIT_S, Clocks(time.time()))

    pruning = [threading.Thread(target=repeat) for _ in range(2)]
    for each in pruning:
        each.start()
    while time.monotonic() < until:
        objects.put(store, key, data)
        assert Path(path).read_bytes() == data
        objects.remove(store, path)
        objects.remove_empty(store, path.rpartition("/shard=")[0])
    for each in pruning:
        each.join()


def test_a_folder_that_was_made_just_now_is_not_taken_from_who_will_write_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "job=a" / "window=20200101T000000Z"
    (folder / "shard=00").mkdir(parents=True)
    store = open_store(tmp_path.as_uri())
    tidy.prune(store, LIMIT_S, Clocks(time.time()))
    assert (folder / "shard=00").is_dir()
    os.utime(folder, (NOW - 7200, NOW - 7200))
    tidy.prune(store, LIMIT_S, Clocks(time.time()))
    assert not folder.exists()


def test_several_at_once_fail_of_nothing_that_another_removed(store: str) -> None:
    opened = open_store(store)
    send(opened, *windows(-10, hosts=16), *windows(-20, hosts=16))
    young = send(opened, *windows(50))
    done: list[Tidied] = []
    raised: list[BaseException] = []

    def once() -> None:
        try:
            done.append(prune(opened))
        except BaseException as error:
            raised.append(error)

    pruning = [threading.Thread(target=once) for _ in range(3)]
    for each in pruning:
        each.start()
    for each in pruning:
        each.join()
    assert raised == [] and len(done) == 3
    assert there(opened) == {*young}


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Something that happens after a store was listed and before anything of it goes."""

    def put(happening: Callable[[], object]) -> None:
        listing = objects.listing

        def then(store: Store) -> Listing:
            monkeypatch.setattr(objects, "listing", listing)
            found = listing(store)
            happening()
            return found

        monkeypatch.setattr(objects, "listing", then)

    return put


def test_what_goes_or_comes_after_the_listing_is_neither_missed_nor_lost(
    store: str, between: Callable[[Callable[[], object]], None]
) -> None:
    opened = open_store(store)
    old, young = send(opened, *windows(-10)), send(opened, *windows(50))
    late: list[str] = []

    def happens() -> None:
        objects.remove(opened, old[0])
        late.extend(send(opened, *windows(-10, hosts=8)[4:]))  # hosts of that moment that send now

    between(happens)
    prune(opened)
    assert there(opened) == {*young, *late}


def test_a_moment_goes_whole_or_stays(tmp_path: Path) -> None:
    opened = open_store(tmp_path.as_uri())
    tmp_path.chmod(0o700)
    paths = send(opened, *windows(-40))
    young = send(opened, *windows(-1))
    for path in paths[1:]:  # one host sent today what the others sent at once
        os.utime(path, (at(-40), at(-40)))
    assert tidy.prune(opened, LIMIT_S, Clocks(NOW)).removed == 0
    os.utime(paths[0], (at(-40), at(-40)))
    assert tidy.prune(opened, LIMIT_S, Clocks(NOW)).removed == 4
    assert there(opened) == {*young}


def test_what_goes_while_it_is_put_together_comes_back_in_nothing(
    store: str, between: Callable[[Callable[[], object]], None]
) -> None:
    opened = open_store(store)
    shards: dict[str, list[Window]] = {}
    for window in windows(-10, hosts=120):
        shards.setdefault(key_of(window.manifest).rpartition("/")[0], []).append(window)
    some = send(opened, *next(members for members in shards.values() if len(members) > 2))
    between(lambda: objects.remove(opened, some[0]))
    tidy.compact(opened, NOW)
    assert there(opened) == {*some[1:]}


def test_an_object_that_goes_while_a_folder_is_listed_hides_no_other(tmp_path: Path) -> None:
    names = [f"job=a/window=20250101T000000Z/shard=00/host{number:03}.parquet" for number in range(300)]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    folder = (tmp_path / names[0]).parent
    going = folder / os.listdir(folder)[100]  # noqa: PTH208  in the order in which they are listed
    found = []
    for thing in objects._files(tmp_path):
        going.unlink(missing_ok=True)
        found += [thing.path] if thing.size_bytes else []
    assert len(found) == 299


# ---- clocks -------------------------------------------------------------------------------------------------------------


def test_a_window_of_a_host_whose_clock_is_behind_stays_as_long_as_others(store: str) -> None:
    opened = open_store(store)
    behind = send(opened, replace(windows(0)[0], manifest=replace(windows(0)[0].manifest, start=86_400.0)))
    young = send(opened, *windows(25))
    assert prune(opened, 29.0).removed == 0
    assert prune(opened, 31.0).removed == 1
    assert there(opened) == {*young} and behind


def test_a_window_of_a_moment_to_come_goes_by_when_it_came(store: str) -> None:
    opened = open_store(store)
    send(opened, *windows(20_000))
    young = send(opened, *windows(20))
    before = prune(opened, 29.0)
    assert (before.removed, before.ahead) == (0, 4)
    after = prune(opened, 31.0)
    assert (after.removed, after.ahead) == (4, 0)
    assert there(opened) == {*young}


@pytest.mark.parametrize(
    ("clocks", "said"),
    [
        (Clocks(at(14 * 365), NOW), "the store's says"),
        (Clocks(at(14 * 365), at(14 * 365)), "no window would be left"),
        (Clocks(at(14 * 365)), "no window would be left"),
    ],
)
def test_a_clock_that_is_years_ahead_throws_nothing_away(store: str, clocks: Clocks, said: str) -> None:
    opened = open_store(store)
    send(opened, *windows(-1), *windows(-40))
    if said == "the store's says":
        # by the earlier of both clocks some are old: a store that says so of names alone
        there_now = replace(objects.listing(opened))
        aged = tuple(replace(found, put_s=float(found.key.start)) for found in there_now.objects)
        with pytest.raises(ClockInDoubt, match=said):
            old_in(replace(there_now, objects=aged), LIMIT_S, clocks)
    else:
        with pytest.raises(ClockInDoubt, match=said) as caught:
            tidy.prune(opened, LIMIT_S, clocks)
        assert "--clock-is-right" in caught.value.help and caught.value.exit_code == 3
    assert len(there(opened)) == 8


def test_windows_recorded_by_a_clock_that_is_years_ahead_do_not_drive_out_all_others() -> None:
    def found(days: float, host: int) -> Found:
        window = windows(days, hosts=2)[host]
        path = f"/store/{key_of(window.manifest)}"
        key = parse(path)
        assert key is not None
        return Found(path, key, 1000, at(days))

    ahead = Listing((*(found(day, host) for day in range(-60, 0, 7) for host in (0, 1)), found(14 * 365, 0)), 0)
    clocks = Clocks(at(14 * 365) + 60, at(14 * 365) + 60)
    with pytest.raises(ClockInDoubt, match="no window from"):
        old_in(ahead, LIMIT_S, clocks)
    assert len(old_in(ahead, LIMIT_S, clocks, clock_is_right=True).sizes_bytes) == 18
    # WHEN the clock is right again, what it left goes by when it came
    assert len(old_in(ahead, LIMIT_S, Clocks(NOW, NOW)).sizes_bytes) == 2 * 5


def test_a_clock_that_is_behind_makes_nothing_old(store: str) -> None:
    opened = open_store(store)
    send(opened, *windows(-400), *windows(-1))
    done = tidy.prune(opened, LIMIT_S, Clocks(0.0, NOW))
    assert (done.removed, done.ahead) == (0, 8)


def test_the_command_says_why_it_removed_nothing(store: str, capsys: pytest.CaptureFixture[str]) -> None:
    opened = open_store(store)
    send(opened, *windows(-40))
    assert run(["prune", store, "--older-than", "0"]) == 3
    shown = capsys.readouterr()
    assert "nothing was removed" in shown.err and "--clock-is-right" in shown.err
    assert len(there(opened)) == 4
    assert run(["prune", store, "--older-than", "0", "--clock-is-right"]) == 0
    assert "4 objects removed" in capsys.readouterr().out
    assert there(opened) == set()


def test_asking_a_store_for_its_clock_leaves_nothing_there(store: str) -> None:
    opened = open_store(store)
    send(opened, *windows(0))
    before = {info.path for info in opened.filesystem.get_file_info(fs.FileSelector(opened.path, recursive=True))}
    assert abs(objects.clock(opened) - time.time()) < 60.0
    after = {info.path for info in opened.filesystem.get_file_info(fs.FileSelector(opened.path, recursive=True))}
    assert before == after
