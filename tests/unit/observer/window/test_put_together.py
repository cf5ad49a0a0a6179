"""Windows in a store that are put together are the same windows, and each host still speaks for itself alone."""

from __future__ import annotations

from dataclasses import replace

from stored import NOW, same, send, windows

from rankscope.diagnose.infer.fleet.sources import load
from rankscope.observer.window.store import container, objects, tidy
from rankscope.observer.window.store.keys import key_of
from rankscope.observer.window.store.place import open_store


def test_windows_put_together_are_the_same_windows(store: str) -> None:
    here = windows(hosts=20)
    send(store, *here)
    opened = open_store(store)
    before = {window.manifest.host: window for window in load([store]).windows}
    done = tidy.compact(opened, NOW + 7200)
    assert done.removed > done.made > 0
    assert len(objects.listing(opened).objects) == 20 - done.removed + done.made
    after = {window.manifest.host: window for window in load([store]).windows}
    assert before.keys() == after.keys()
    assert all(same(before[host], after[host]) for host in before)
    again = tidy.compact(opened, NOW + 7200)
    assert (again.removed, again.made) == (0, 0)


def test_putting_together_that_was_stopped_is_finished_the_next_time(store: str) -> None:
    here = windows(hosts=20)
    send(store, *here)
    opened = open_store(store)
    tidy.compact(opened, NOW + 7200)
    several = [found for found in objects.listing(opened).objects if not found.key.host]
    send(store, *here)  # as if none of the small ones had been removed
    assert len(load([store]).windows) == 20
    done = tidy.compact(opened, NOW + 7200)
    assert done.made == 0
    assert {found.path for found in several} <= {found.path for found in objects.listing(opened).objects}
    assert len(load([store]).windows) == 20


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
    send(store, *windows(hosts=20))
    assert tidy.compact(open_store(store), NOW + 60).removed == 0
