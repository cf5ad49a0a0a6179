"""The soak's figures: what grows is seen, what jumps by pages is not, forks and steps are told with and without an observer."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE

import pytest

from campaignkit import results
from campaignkit.cli import main
from campaignkit.results import Result, merged
from campaignkit.soak import figures
from campaignkit.soak.campaign import Soak
from campaignkit.soak.figures import Sample, Who, grown, growth, samples_of, series_of, settled, slowed
from campaignkit.soak.judged import problems, table, too_little
from campaignkit.soak.run import held_by, steps_between

NONE: dict[str, float] = {}
HOLDS = """
import mmap, sys
with open(sys.argv[1], "rb") as file:
    pages = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
read, own = sum(pages[::4096]), b"x" * (int(sys.argv[2]) << 20)
print("ready", flush=True)
sys.stdin.read()
"""


def soak(rss_mb: list[float], piece: float = 0.0, who: Who = Who.HELD) -> list[Sample]:
    """A sample of 10 s each, every fifth a pause."""
    one = Sample(piece, who, 0.0, 10.0, 0.0, 40, 0.2, 5.0, 20.0, 21.0, 480)
    pause = replace(one, who=Who.NOBODY)
    return [
        replace(pause, at_s=10.0 * number) if number % 5 == 4 else replace(one, at_s=10.0 * number, rss_mb=rss)
        for number, rss in enumerate(rss_mb)
    ]


def test_a_leak_is_seen_and_the_noise_of_pages_is_not() -> None:
    noise = random.Random(7)
    assert problems("windows", soak([150 + noise.uniform(-1, 1) for _ in range(700)]), NONE) == []
    # WHEN 20 KB are lost in each window, which is 7 % in two hours
    (said,) = problems("windows", soak([150 + number * 20 / 1024 for number in range(720)]), NONE)
    assert said == "one process: memory grew by 8.5%; 1% are allowed"
    (said,) = problems("watch", soak([150 + number * 20 / 1024 for number in range(720)], who=Who.WATCH), NONE)
    assert said == "the service: memory grew by 8.5%; 5% are allowed"


def test_the_first_ten_minutes_do_not_count_nor_the_first_third_of_a_short_run() -> None:
    warming = soak([100.0 + min(number, 59) for number in range(700)])
    assert problems("windows", warming, NONE) == []
    assert settled(warming, Who.HELD)[0].at_s == 600.0
    assert settled(soak([100.0] * 30), Who.HELD)[0].at_s == 100.0


def test_steps_belong_to_the_interval_that_they_lie_in() -> None:
    ends = [0.02 * number for number in range(1001)]
    steps = steps_between(ends, 5.0, 10.0)
    assert len(steps) == pytest.approx(250, abs=1) and all(step == pytest.approx(0.02) for step in steps)
    assert steps_between(ends, 30.0, 40.0) == []


def test_samples_come_back_as_they_were_kept_in_order_and_from_several_rows() -> None:
    first, second = soak([100.0] * 7), soak([101.0] * 7, piece=1.0)
    rows = [Result("soak", "windows", "", "", "", 1.0, series=series_of(one)) for one in (second, first)]
    assert samples_of(merged(*rows).series) == [*first, *second]
    assert samples_of({}) == []


def test_a_leak_shows_in_pieces_as_it_does_in_one() -> None:
    leak = [150 + number * 20 / 1024 for number in range(360)]
    seen = [*soak(leak), *soak(leak, piece=1.0)]
    (said,) = problems("windows", seen, NONE)
    assert said.startswith("one process: memory grew by ")
    # Of each hour the settling ten minutes are left out: in two pieces a leak that shows as 8.5 % in one run shows as 7.9 %.
    assert 0.077 < grown(settled(seen, Who.HELD), lambda one: one.rss_mb) < 0.081
    assert "of 2 pieces" in "\n".join(table("windows", seen, 8))
    assert 6.9 < figures.slope_mb_per_hour(settled(seen, Who.HELD)) < 7.1


def test_an_observer_that_takes_more_in_one_piece_than_in_another_has_not_grown() -> None:
    seen = [one for number, rss in enumerate((150.0, 170.0, 150.0)) for one in soak([rss] * 200, float(number))]
    assert problems("windows", seen, NONE) == []


def test_growth_of_few_values_is_none() -> None:
    assert growth([0.0, 1.0], [1.0, 5.0]) == 0.0
    assert round(growth([0.0, 1.0, 2.0, 3.0], [100.0, 101.0, 102.0, 103.0]), 3) == 0.03


def long_soak(
    *, slower: float = 1.0, stalled: float = 0.0, memory: float = 0.0, late: float = 0.0, rounds: int = 150
) -> list[Sample]:
    """Two hours of rounds as `scripts/soak` makes them: in all windows steps that are `slower`, means that are longer by `stalled`; memory
    that grows by so much after the first ten minutes, evenly, or in the last minutes at once."""
    noise, seen, at = random.Random(3), [], 0.0
    for _ in range(rounds):
        for who in (Who.HELD, Who.HELD, Who.ONCE, Who.HELD, Who.NOBODY):
            settled_share = max(0.0, (at - 600.0) / (50.0 * rounds - 600.0))
            more = memory * settled_share + (late if settled_share > 0.92 else 0.0)
            observed = who is not Who.NOBODY
            step_ms = 60 * (slower if observed else 1.0) * noise.uniform(0.95, 1.05)
            rss = 150 * (1 + more) + noise.uniform(-1, 1) if observed else 0.0
            mean_ms = step_ms * (1 + (stalled if observed else 0.0))
            seen.append(Sample(0.0, who, at, 10.0, rss, 40, 0.1, 4.0, step_ms, mean_ms, 10_000 / mean_ms))
            at += 10.0
    return seen


def test_an_honest_soak_is_flat_and_long_enough() -> None:
    seen = long_soak(slower=1.025)
    assert problems("windows", seen, {"windows": 450, "stepless": 20, "unwatched": 23}) == []
    assert too_little("windows", seen) == []
    assert len(slowed(seen)[0]) == 150


@pytest.mark.parametrize("leak", [{"memory": 0.014}, {"memory": 0.019}, {"late": 0.03}])
def test_what_grows_by_more_than_one_percent_after_settling_is_seen_however_it_does(leak: dict[str, float]) -> None:
    found = [one.partition(" grew")[0] for one in problems("windows", long_soak(**leak), NONE)]
    assert found == ["one process: memory", "a command each: memory"]


def test_a_job_that_is_slowed_is_seen_in_its_steps_and_where_it_stalls_in_their_mean() -> None:
    (said,) = problems("windows", long_soak(slower=1.08), NONE)
    assert said.startswith("the median step was ") and said.endswith("5% are allowed")
    assert len(problems("windows", long_soak(slower=5.0), NONE)) == 2
    (said,) = problems("windows", long_soak(stalled=0.2), NONE)
    assert said.startswith("the mean of the steps was ")


def test_a_slow_fork_is_bad_where_it_is_the_observers() -> None:
    seen = soak([100.0] * 100, who=Who.WATCH)
    slow = [replace(one, fork_ms=1500.0) if one.at_s == 700.0 else one for one in seen]
    assert problems("watch", slow, NONE) == ["a fork of the host took 1.50 s; without an observer 0.01 s at most"]
    told = "longest fork 1.500 s with, 0.005 s without; above 0.1 s in 1 of 80 samples; waiting for probes "
    assert told + "0.000 s, above 0.1 s in 0" in table("watch", slow, 8)
    waited = [replace(one, probes_ms=1400.0) if one.at_s == 700.0 else one for one in slow]
    assert told + "1.400 s, above 0.1 s in 1" in table("watch", waited, 8)
    # Of a row from before it was known what a fork waited for, all of it is taken for waiting for probes.
    old = {name: values for name, values in series_of(slow).items() if name != "probes_ms"}
    assert told + "1.500 s, above 0.1 s in 1" in table("watch", samples_of(old), 8)
    alone = [replace(one, fork_ms=1600.0) if one.who == Who.NOBODY else one for one in slow]
    assert problems("watch", alone, NONE) == [], "the host is as slow without it"


def test_the_table_tells_what_it_costs() -> None:
    said = "\n".join(table("watch", soak([100.0] * 100, who=Who.WATCH), 8))
    assert "CPU 2.00% of a core, 0.250% for each of 8 ranks" in said
    assert "steps: median 20.00 ms with, 20.00 ms without; mean 21.00 and 21.00 ms" in said


def test_windows_that_tell_nothing_of_the_job_are_no_good_soak() -> None:
    sums = {"windows": 100.0, "stepless": 11.0, "unwatched": 100.0}
    assert problems("windows", long_soak(), sums) == [
        "11 of 100 windows told no steps of some ranks", "100 of 100 windows told of no process that a rank had started"
    ]  # fmt: skip


def test_too_few_windows_are_not_flat_but_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, asked = tmp_path / "results.jsonl", ["soak", "--only", "windows", "--table"]
    (source,) = Soak().sources(["windows"]).values()
    codes = {}
    for name, seen, more in (
        ("short", long_soak(rounds=8), ()), ("long", long_soak(), ()), ("dead", long_soak(), ("1 ranks of the job ended",)),
    ):  # fmt: skip
        minutes = sum(one.seconds for one in seen) / 60
        results.write(
            file,
            [Result("soak", "windows", "2026-01-01", "", source, minutes, NONE, {"ranks": 8}, series_of(seen), more)],
        )
        codes[name] = main([*asked, "--results", str(file)])
    assert codes == {"short": 1, "long": 0, "dead": 1}
    said = capsys.readouterr().out
    assert "settled samples of a command each, 10 are needed" in said and "1 ranks of the job ended" in said
    assert len(too_little("windows", long_soak(rounds=8))) == 3


def test_the_memory_of_a_service_is_what_it_would_give_back_and_not_the_files_that_it_maps(tmp_path: Path) -> None:
    (tmp_path / "library").write_bytes(bytes(64 << 20))
    held = []
    for own_mb in (1, 31):
        words = [sys.executable, "-I", "-S", "-c", HOLDS, str(tmp_path / "library"), str(own_mb)]
        with subprocess.Popen(words, stdin=PIPE, stdout=PIPE, start_new_session=True) as one:
            assert one.stdin is not None and one.stdout is not None and one.stdout.readline() == b"ready\n"
            held.append(held_by(one.pid))
            one.stdin.close()
    assert held[0][0] < 20 and held[1][0] - held[0][0] == pytest.approx(30, abs=2)
    assert held[0][1] >= 3
