"""Of the moments in a store the newest is judged that most hosts have; names that lie hide none that say the truth."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import pytest
from stored import NOW, send, windows

from rankscope.diagnose.infer.fleet.newest import NEWEST, newest
from rankscope.diagnose.infer.fleet.sources import load
from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.observer.window.store import objects, tidy
from rankscope.observer.window.store.keys import Key
from rankscope.observer.window.store.place import Store, open_store


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


def test_of_a_moment_that_tells_the_truth_little_is_read_twice(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for start in (NOW - 300, NOW):
        send(store, *windows(hosts=20, start=start))
    tidy.compact(open_store(store), NOW + 7200)
    send(store, *windows(hosts=20, start=NOW + 300))
    get, read = objects.get, Counter[str]()

    def counted(there: Store, path: str) -> bytes:
        read[path] += 1
        return get(there, path)

    monkeypatch.setattr(objects, "get", counted)
    assert len(load([store]).windows) == 20
    assert (len(read), read.total()) == (20, 21)


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
