"""The soak's figures: what grows is seen, what jumps by pages is not, steps are counted with and without an observer."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from labkit.machine.shell import LabError
from soakkit import kept
from soakkit.cli import Part, main
from soakkit.figures import Interval, grown, growth, length_s, rows, settled, slowed, steps_in, table
from soakkit.judged import Job, problems, too_little

MB = 1 << 20


def soak(rss_bytes: list[float], descriptors: int = 40) -> list[Interval]:
    """A window of 10 s each, every fifth interval a pause."""
    found: list[Interval] = []
    for number, rss in enumerate(rss_bytes):
        at = 10.0 * number
        found.append(Interval(at, at + 10.0, number % 5 != 4, False, int(rss), descriptors, 8, 0))
    return found


def test_a_leak_is_seen_and_the_noise_of_pages_is_not() -> None:
    noise = random.Random(7)
    flat = soak([150 * MB + noise.randrange(-MB, MB) for _ in range(700)])
    assert problems(flat) == []
    # WHEN 20 KB are lost in each window, which is 7 % in two hours
    leaking = soak([150 * MB + 20480 * number for number in range(720)])
    assert problems(leaking) == ["one process: memory grew by 8.5%"]


def test_the_first_ten_minutes_do_not_count_nor_the_first_third_of_a_short_run() -> None:
    warming = soak([(100 + min(number, 59)) * MB for number in range(700)])
    assert problems(warming) == []
    assert settled(warming, once=False)[0].began_s == 600.0
    assert settled(soak([100.0 * MB] * 30), once=False)[0].began_s == 100.0


def test_windows_that_failed_are_said_and_not_compared() -> None:
    seen = [*soak([100.0 * MB] * 30), Interval(300.0, 310.0, True, failed="no ranks")]
    assert problems(seen) == ["a window failed: no ranks"]
    assert all(not one.failed for one in settled(seen, once=False))


def test_steps_belong_to_the_interval_that_they_lie_in() -> None:
    times = list(itertools.accumulate([0.02] * 1000 + [0.03] * 1000, initial=0.0))
    with_it, without = Interval(0.0, 20.0, True), Interval(20.0, 50.0, False)
    assert {round(step, 6) for step in steps_in(times, [with_it])} == {0.02}
    assert len(steps_in(times, [without])) >= 998
    assert "-33.3%" in table([with_it, without], times)[-1]


def test_a_line_is_told_when_nothing_will_be_added_to_it() -> None:
    seen = soak([100.0 * MB] * 130)
    assert [line.split()[0] for line in rows(seen, [], 600.0, ended=True)] == ["10.0", "20.0"]
    assert rows(seen[:60], [], 600.0, ended=True) == []
    assert table(seen, [], 600.0)[1:3] == rows(seen, [], 600.0, ended=True)
    assert rows([], [], 600.0, ended=True) == []


def test_of_a_run_that_was_killed_the_figures_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "out/figures.json"
    seen, times = soak([100.0 * MB] * 30), list(itertools.accumulate([0.02] * 1000, initial=0.0))
    seen = [replace(one, stepped=8, watched=True) for one in seen]
    kept.write(place, seen, times)
    (place.parent / "figures.json.partial").write_text('{"intervals": [')  # it was killed while it wrote the next ones
    assert kept.read(place)[0] == seen
    assert main(["--table", "--json", str(place)]) == 3
    assert capsys.readouterr().out.splitlines()[:-4] == table(seen, times)
    for content in ("", "[]", '{"intervals": [{}], "step_ends_s": []}'):
        place.write_text(content)
        assert main(["--table", "--json", str(place)]) == 64
    assert "holds no figures" in capsys.readouterr().err


def in_parts(rss_bytes: list[list[float]]) -> list[Interval]:
    """Parts one after the other, each with its own clock."""
    seen: list[Interval] = []
    times: list[float] = []
    for number, values in enumerate(rss_bytes):
        part = Part(seen, times, lambda *_: None)
        boot_s = 1e5 * (number + 1)
        for one in soak(values):
            part.add(replace(one, began_s=one.began_s + boot_s, ended_s=one.ended_s + boot_s))
        part.keep([boot_s - 1 + 0.02 * step for step in range(50 * 10 * len(values) + 100)])
        seen, times = part.seen, part.times
    assert times == sorted(times)
    assert 0.019 < min(steps_in(times, seen)) <= max(steps_in(times, seen)) < 0.021
    return seen


def test_a_leak_shows_in_parts_as_it_does_in_one() -> None:
    leak = [150 * MB + 20480.0 * number for number in range(360)]
    seen = in_parts([leak, leak])
    assert (length_s(seen), [one.part for one in seen[359:361]]) == (7200.0, [0, 1])
    (said,) = problems(seen)
    assert said.startswith("one process: memory grew by ")
    # Of each hour the settling ten minutes are left out: in two parts a leak that shows as 8.5 % in one run shows as 7.9 %.
    assert 0.077 < grown(settled(seen, once=False), lambda one: one.rss_bytes) < 0.081
    assert "of 2 parts" in "\n".join(table(seen, []))


def test_an_observer_that_takes_more_in_one_part_than_in_another_has_not_grown() -> None:
    assert problems(in_parts([[150.0 * MB] * 200, [170.0 * MB] * 200, [150.0 * MB] * 200])) == []


def test_parts_go_on_with_the_same_settings_alone(tmp_path: Path) -> None:
    place = tmp_path / "figures.json"
    settings = {"window": 10.0, "ranks": 8, "forks": 20}
    assert kept.begun(place, settings) == ([], [])
    kept.write(place, soak([100.0 * MB] * 30), [1.0, 2.0], settings)
    assert len(kept.begun(place, settings)[0]) == 30
    with pytest.raises(LabError, match="begun with window 10, ranks 8, forks 20"):
        kept.begun(place, {**settings, "window": 5.0})


def test_growth_of_few_values_is_none() -> None:
    assert growth([0.0, 1.0], [1.0, 5.0]) == 0.0
    assert round(growth([0.0, 1.0, 2.0, 3.0], [100.0, 101.0, 102.0, 103.0]), 3) == 0.03


JOB = Job(ranks=8, forks=True)


def long_soak(
    *, slower: float = 1.0, stalled_s: float = 0.0, memory: float = 0.0, late: float = 0.0, rounds: int = 150
) -> tuple[list[Interval], list[float]]:
    """Two hours of rounds as `scripts/soak` makes them: in all windows steps that are `slower`, in each one that stalls; memory that grows
    by so much after the first ten minutes, evenly, or in the last minutes at once."""
    noise, seen, times, at = random.Random(3), [], [], 0.0
    for number in range(rounds):
        for turn, once in enumerate((False, False, True, False, None)):
            settled_share = max(0.0, (at - 600.0) / (50.0 * rounds - 600.0))
            more = memory * settled_share + (late if settled_share > 0.92 else 0.0)
            rss = int(150 * MB * (1 + more) + noise.randrange(-MB, MB))
            observed = once is not None
            seen.append(
                Interval(
                    at, at + 10.0, observed, bool(once), rss, 40, 10, 0, stepped=10, watched=(number + turn) % 20 != 0
                )
            )
            step_s = 0.06 * (slower if observed else 1.0) * noise.uniform(0.9, 1.1)
            now = at + (stalled_s if observed else 0.0)
            times.append(at)
            while now + step_s <= at + 10.0:
                now += step_s * noise.uniform(0.8, 1.2)
                times.append(now)
            at += 10.0
    return seen, times


def test_an_honest_soak_is_flat_and_long_enough() -> None:
    seen, times = long_soak(slower=1.025)
    assert problems(seen, times, JOB) == []
    assert too_little(seen, times, JOB) == []
    assert len(slowed(seen, times)[0]) == 150


@pytest.mark.parametrize("leak", [{"memory": 0.014}, {"memory": 0.019}, {"late": 0.03}])
def test_what_grows_by_more_than_one_percent_after_settling_is_seen_however_it_does(leak: dict[str, float]) -> None:
    seen, times = long_soak(**leak)
    assert [one.partition(" grew")[0] for one in problems(seen, times, JOB)] == [
        "one process: memory",
        "a command each: memory",
    ]


def test_a_job_that_is_slowed_is_seen_in_its_steps_and_where_it_stalls_in_their_mean() -> None:
    seen, times = long_soak(slower=1.08)
    (said,) = problems(seen, times, JOB)
    assert said.startswith("the median step was ") and said.endswith("5% are allowed")
    seen, times = long_soak(slower=5.0)
    assert len(problems(seen, times, JOB)) == 2
    seen, times = long_soak(stalled_s=2.0)
    (said,) = problems(seen, times, JOB)
    assert said.startswith("the mean of the steps was ")
    assert problems(seen, times, replace(JOB, beside=True)) == [], "where others use the host nobody can tell"


def test_a_job_that_died_and_windows_that_tell_nothing_of_it_are_no_good_soak() -> None:
    seen, times = long_soak()
    dead = [*seen[:100], *(replace(one, ranks=0, stepped=0, watched=False, ended=8) for one in seen[100:])]
    said = problems(dead, times, JOB)
    assert said[0] == "8 ranks of the job ended"
    assert any("told of fewer than 8 ranks, of 0 at least" in one for one in said)
    assert "one process: windows told no steps of some ranks" in said
    blind = [replace(one, watched=False) for one in seen]
    assert problems(blind, times, JOB) == ["one process: windows told of no process that a rank had started"]


def test_too_few_windows_are_not_flat_but_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen, times = long_soak(rounds=8)
    assert problems(seen, times, JOB) == []
    assert len(too_little(seen, times, JOB)) == 3
    place = tmp_path / "figures.json"
    kept.write(place, seen, times, {"window": 10.0, "ranks": 8, "forks": 20})
    assert main(["--table", "--json", str(place)]) == 3
    assert "7 of 120 minutes" in capsys.readouterr().out
    seen, times = long_soak()
    kept.write(place, seen, times, {"window": 10.0, "ranks": 8, "forks": 20})
    assert main(["--table", "--json", str(place)]) == 0
    kept.write(place, [replace(one, ended=1) for one in seen], times, {"window": 10.0, "ranks": 8, "forks": 20})
    assert main(["--table", "--json", str(place)]) == 1
