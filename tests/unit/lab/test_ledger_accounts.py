"""The ledger's campaign: pauses keep apart, a job's own account adds up, and what a ledger has wrong is named."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest

from campaignkit.ledger import accounts, schedule


def test_no_two_pauses_meet_however_short_the_run() -> None:
    for minutes in (schedule.LEAST_MINUTES, 60.0, 120.0):
        lasts_s = {"hang": schedule.hang_s(minutes), "gc": 0.8}
        times = sorted(
            (at, at + lasts_s.get(kind, 6.0)) for kind, some in schedule.pauses(0.0, minutes).items() for at in some
        )
        times.append((schedule.kill_at(0.0, minutes), schedule.kill_at(0.0, minutes) + 20.0))
        assert all(later[0] - one[1] > 2.0 for one, later in pairwise(sorted(times)))
        assert max(times)[1] < minutes * 60.0
        assert schedule.hang_s(minutes) >= 40.0


def test_two_hours_have_what_they_are_to_have() -> None:
    assert schedule.counts(120.0) == {"gc": 23, "checkpoint": 12, "loader": 8, "hang": 1}
    collections = schedule.pauses(1000.0, 120.0)["gc"]
    assert [later - one for one, later in pairwise(collections)] == pytest.approx([300.0] * 22)


def told(*rows: tuple[str, float, float]) -> list[dict[str, object]]:
    return [{"kind": kind, "at": at, "seconds": seconds, "step": 7} for kind, at, seconds in rows]


def test_a_job_adds_up_what_its_ranks_wrote() -> None:
    # GIVEN two collections, one late answer that three ranks waited for, and a kill at 100 s behind step 40; checkpoint: step 30
    ranks = [
        [*told(("gc", 20.0, 0.5), ("loader", 50.1, 2.8)), {"kind": "start", "at": 104.5, "step": 30, "pid": 1}],
        [*told(("loader", 50.0, 2.9)), {"kind": "start", "at": 104.7, "step": 30, "pid": 2}],
        [{"kind": "start", "at": 1.0, "step": 0, "pid": 3}, *told(("gc", 60.0, 0.7), ("loader", 50.2, 2.7))],
    ]
    steps = [(60.0 + number, float(number)) for number in range(1, 41)]
    sums = accounts.of_job(ranks, steps, 100.0)
    assert {name: value for name, value in sums.items() if value} == {
        "gc true": 2, "gc true_s": 1.2, "loader true": 1, "loader true_s": 2.9, "down true": 1, "down true_s": 4.5,
        "redone true": 1, "redone true_s": 10.0,
    }  # fmt: skip


def test_what_the_ledger_has_wrong_is_named_and_a_kind_that_never_was() -> None:
    true = {f"{kind} true{unit}": 20.0 for kind in accounts.KINDS for unit in ("", "_s")}
    entries = [{"kind": kind, "count": 20, "seconds": 20.9} for kind in accounts.KINDS]
    assert accounts.problems(true | accounts.of_ledger(entries)) == []
    soon = [{**one, "seconds": 0.0} if one["kind"] == "down" else one for one in entries]
    assert accounts.problems(true | {"down true_s": 0.4} | accounts.of_ledger(soon)) == []
    assert accounts.problems(true | {"down true_s": 4.0} | accounts.of_ledger(soon)) == [
        "down: 0 seconds in the ledger, 4 in the job"
    ]
    # WHEN two collections have no name, and there was no hang
    entries[0] = {"kind": "gc", "count": 18, "seconds": 18.4}
    sums = (
        true
        | {"hang true": 0.0, "hang true_s": 0.0}
        | accounts.of_ledger([*entries, {"kind": "pause", "count": 2, "seconds": 2.1}])
    )
    assert accounts.problems(sums) == [
        "gc: 18 events in the ledger, 20 in the job", "gc: 18.4 seconds in the ledger, 20 in the job", "the job had no hang",
    ]  # fmt: skip
    assert accounts.table(sums)[1].split() == ["gc", "20", "20.00", "s", "18", "18.40", "s"]
    assert accounts.table(sums)[-1].split() == ["pause", "0", "0.00", "s", "2", "2.10", "s"]


def test_a_line_that_the_kill_cut_off_is_left_out() -> None:
    whole = json.dumps({"kind": "gc", "at": 1.0, "seconds": 0.5})
    assert accounts.lines_of(f'{whole}\n{{"kind": "loa') == [{"kind": "gc", "at": 1.0, "seconds": 0.5}]
    assert accounts.lines_of('{"kind"') == []
