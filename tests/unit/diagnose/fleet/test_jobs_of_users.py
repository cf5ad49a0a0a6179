"""A job is one user's, on all of its hosts: who gives his processes the name of another's job is in none of its windows.

One host's census knows the users on that host alone, so windows of several hosts come with names that do not say it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from builders import Job, build, claimed, codes, said, slow_python
from hypothesis import given
from hypothesis import strategies as st

from rankscope.diagnose import budgets
from rankscope.diagnose.face.documents.verdicts import judge_all
from rankscope.diagnose.infer.fleet import roll_call
from rankscope.diagnose.infer.fleet.sources import Loaded, find, load
from rankscope.diagnose.infer.past.auto_baseline import choose
from rankscope.diagnose.infer.past.history import History
from rankscope.diagnose.infer.solve import large_fleet
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.solve.large_fleet import diagnose_large
from rankscope.diagnose.infer.verdict.contract import Verdict
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.window.folder import Window, write_window
from rankscope.observer.window.jobs import of_user, without_user
from rankscope.observer.window.store.users import by_user, called, rename_jobs

OURS, THEIRS = 1000, 1666


def windows_of(owner: int, job: Job, host: str = "") -> list[Window]:
    """The windows of a job of this user; on hosts of their own if a name is given."""
    owned = replace(job, ranks_columns={rank: {"owner": owner} for rank in range(job.ranks)})
    return [replace(each, manifest=replace(each.manifest, host=f"{host}{each.manifest.host}")) for each in build(owned)]


def of_ranks(window: Window, ranks: set[int]) -> Window:
    """The window with these ranks alone."""

    def only(table, column="rank"):  # type: ignore[no-untyped-def]
        return table.filter([rank in ranks for rank in table[column].to_pylist()])

    return replace(window, ranks=only(window.ranks), steps=only(window.steps), patterns=only(window.patterns))


def judged(windows: list[Window], tmp_path: Path, how: str, job: str | None = None) -> list[Verdict]:
    """By one process, or as a fleet of thousands of hosts is."""
    for window in windows:
        write_window(window, tmp_path)
    if how == "one":
        return judge_all(load([tmp_path]), (), job, None, ())
    with ThreadPoolExecutor(1) as pool:
        return [verdict for _, verdict in diagnose_large(find([tmp_path]), job, pool)]


@pytest.mark.parametrize("how", ["one", "large"])
def test_a_rank_that_is_missing_is_not_filled_by_another_user_on_another_host(tmp_path: Path, how: str) -> None:
    # GIVEN a job of which one rank's host sent no window, and another user's process with that rank's number
    ours = [of_ranks(each, set(range(7))) for each in windows_of(OURS, Job(hosts=2))]
    theirs = [of_ranks(each, {7}) for each in windows_of(THEIRS, slow_python(7, 0.08, hosts=2), "evil-")[1:]]
    # WHEN
    verdicts = {verdict.ranks: verdict for verdict in judged([*ours, *theirs], tmp_path, how)}
    # THEN
    assert set(verdicts) == {tuple(range(7)), (7,)}
    mine = verdicts[tuple(range(7))]
    assert not any("evil" in host for host in mine.hosts)
    assert mine.status != "fault"
    assert NoteCode.OTHER_USERS in codes(mine)
    assert (mine.job, verdicts[(7,)].job) == ("job-a of user 1000", "job-a of user 1666")


@pytest.mark.parametrize("how", ["one", "large"])
def test_who_has_more_ranks_on_more_hosts_does_not_take_the_job(tmp_path: Path, how: str) -> None:
    ours = windows_of(OURS, slow_python(3, 0.08, hosts=2))
    theirs = windows_of(THEIRS, Job(ranks=12, hosts=3), "evil-")
    verdicts = {verdict.ranks: verdict for verdict in judged([*theirs, *ours], tmp_path, how)}
    mine = verdicts[tuple(range(8))]
    assert mine.suspects[0].ranks == (3,)
    assert not any("evil" in host for host in mine.hosts)
    assert set(verdicts) == {tuple(range(8)), tuple(range(12))}


@pytest.mark.parametrize("how", ["one", "large"])
def test_of_too_many_jobs_the_largest_keep_the_names_by_which_they_are_told_apart(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (roll_call, large_fleet):
        monkeypatch.setattr(where, "JOBS_MOST", 1)
    windows = [*windows_of(OURS, Job(hosts=2)), *windows_of(THEIRS, Job(ranks=12, hosts=3), "evil-")]
    [verdict] = judged(windows, tmp_path, how)
    assert len(verdict.ranks) == 12 and NoteCode.OTHER_JOBS in codes(verdict)
    if how == "large":
        assert verdict.job == "job-a of user 1666"


@pytest.mark.parametrize("how", ["one", "large"])
def test_one_users_many_jobs_take_no_place_of_anothers(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in (roll_call, large_fleet):
        monkeypatch.setattr(where, "JOBS_MOST", 2)
    theirs = [
        window for at in range(3) for window in windows_of(THEIRS, Job(name=f"many-{at}", ranks=9), f"evil-{at}-")
    ]
    verdicts = judged([*theirs, *windows_of(OURS, slow_python(3, 0.08))], tmp_path, how)
    assert sorted(verdict.job for verdict in verdicts) == ["job-a", "many-0"]
    text = "4 jobs were seen; 2, of each user the largest first, are judged, name another with --job: "
    assert all(said(verdict, NoteCode.OTHER_JOBS).startswith(text) for verdict in verdicts)


@pytest.mark.parametrize("how", ["one", "large"])
def test_a_job_whose_ranks_are_merely_claimed_keeps_no_verdict_of_anothers_back(
    tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budgets, "CELLS_MOST", 10_000)
    [theirs] = windows_of(THEIRS, Job(name="claim"), "evil-")
    windows = [*windows_of(OURS, slow_python(3, 0.08)), theirs, claimed(theirs, 400)]
    verdicts = {verdict.job: verdict for verdict in judged(windows, tmp_path, how)}
    assert {job: verdict.status for job, verdict in verdicts.items()} == {"job-a": "fault", "claim": "unknown"}
    assert verdicts["claim"].ranks == tuple(range(400))
    assert "400 ranks are claimed" in verdicts["claim"].notes[0].text


@pytest.mark.parametrize("how", ["one", "large"])
def test_a_host_on_which_the_job_is_called_otherwise_is_not_lost(tmp_path: Path, how: str) -> None:
    """Where another user's ranks work together under the name, the census of that host says whose each is."""
    first, second = windows_of(OURS, slow_python(3, 0.08, hosts=2))
    first = called(first, {"job-a": "job-a of user 1000"})
    [verdict] = judged([first, second], tmp_path, how)
    assert verdict.ranks == tuple(range(8))
    assert verdict.suspects[0].ranks == (3,)


def test_it_can_be_asked_for_by_its_whole_name(tmp_path: Path) -> None:
    windows = [*windows_of(OURS, slow_python(3, 0.08)), *windows_of(THEIRS, Job(ranks=12), "evil-")]
    [verdict] = judged(windows, tmp_path, "one", "job-a of user 1000")
    assert verdict.suspects[0].ranks == (3,)
    assert len(judge_all(Loaded(tuple(windows), ()), (), "job-a", None, ())) == 2


def test_jobs_of_root_and_of_windows_that_do_not_say_whose_they_are_keep_their_names() -> None:
    for owner in (-1, 0, 1000):
        assert diagnose(windows_of(owner, slow_python(3, 0.08, hosts=2))).job == "job-a"


def test_a_baseline_is_the_same_users_whatever_it_was_called_then(tmp_path: Path) -> None:
    ours = windows_of(OURS, slow_python(3, 0.08, hosts=2))
    earlier = [called(each, {"job-a": "job-a of user 1000"}) for each in windows_of(OURS, Job(hosts=2, start=1.75e9))]
    claimed = windows_of(THEIRS, Job(ranks=12, start=1.75e9), "evil-")
    [verdict] = judge_all(Loaded(tuple(ours), ()), [*earlier, *claimed], None, None, ())
    assert verdict.baseline is not None
    assert verdict.baseline.ranks == 8


def test_a_past_is_found_under_the_name_that_it_had(tmp_path: Path) -> None:
    """Whoever works under a job's name beside it makes the census call it otherwise: that must not take its past away."""
    history = History(tmp_path)
    for number in range(3):
        [window] = windows_of(OURS, Job(ranks=4, start=1.75e9 + 1000 * number))
        history.add(window, diagnose([window]))
    [window] = windows_of(OURS, Job(ranks=4))
    now = called(window, {"job-a": "job-a of user 1000"})
    chosen = choose(history, [now], "job-a of user 1000")
    assert len(chosen.windows) == 3
    assert diagnose([now], history=history).baseline is not None


@given(st.text(max_size=30), st.integers(-1, 5), st.integers(-1, 5))
def test_no_name_that_a_process_says_is_another_users(job: str, owner: int, other: int) -> None:
    name = of_user(job, owner)
    assert of_user(name, owner) == name
    assert without_user(f"{without_user(job)} of user 3") == without_user(job)
    if max(owner, 0) != max(other, 0):
        for said in (job, name, f"{job} of user {max(owner, 0)}"):
            assert of_user(said, other) != name


def test_whose_ranks_a_window_holds_is_what_those_say_that_are_alive() -> None:
    [window] = windows_of(OURS, Job(ranks=3))
    rows = window.ranks.to_pylist()
    rows[1]["owner"] = -1
    window = replace(window, ranks=window.ranks.from_pylist(rows, window.ranks.schema))
    assert set(by_user(window).ranks["job"].to_pylist()) == {"job-a of user 1000"}
    ((same,),) = rename_jobs([window])
    assert same is window
