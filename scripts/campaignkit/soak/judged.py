"""What of a soak is not as it must be, what there is too little of to say, and its table. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from campaignkit.soak.figures import (
    HELD,
    IN_WORDS,
    Sample,
    Who,
    grown,
    longest_fork_s,
    longest_wait_s,
    pieces_of,
    settled,
    share_of_a_core,
    slope_mb_per_hour,
    slowed,
    steps_of,
)

# Growth after the first minutes. A service keeps what it knows of each job that comes and goes, up to limits of its own.
FLAT = {Who.HELD: 0.01, Who.ONCE: 0.01, Who.WATCH: 0.05}
# EVIDENCE's table of costs: 8 ranks on 2 cores +2.5 % in the median of their recordings, 11 % in one of them. Here more than a hundred
# rounds have one median, which noise moves by half a percent: twice the table's is no noise. The mean of steps has in it what is no
# step's: loading and writing, which take 0.1 to 0.6 s of CPU in the one process, 1.5 s in a command, 2 or 3 % of two cores that the ranks
# fill. With the table's 2.5 % that stays below what one recording has shown; a job that stalls as probes are loaded does not.
SLOWER, SLOWER_IN_MEAN = 0.05, 0.11
# Forks of the host: what is wanted where CPUs are free, and what is the most where they are not (observer/apart/README.md).
LONGEST_FORK_S, MOST_FORK_S = 0.1, 1.0
_MOST = 0.9  # of the windows; others are cut off by an interrupt, or begin as the other job starts again
# Settled samples of each sort, and rounds with pauses: fewer say nothing. A service has one round in each piece.
LEAST = {Who.HELD: 30, Who.ONCE: 10, Who.WATCH: 60}
_LEAST_ROUNDS, _LEAST_STEPS = {"windows": 10, "watch": 1}, 1000
SORTS = {"windows": (Who.HELD, Who.ONCE), "watch": (Who.WATCH,)}


def problems(case: str, samples: Sequence[Sample], sums: Mapping[str, float]) -> list[str]:
    """What is not as it must be. `sums`: windows, and of them those that told no steps, or no process that a rank had started."""
    found = []
    for who in SORTS[case]:
        part = settled(samples, who)
        for name, value in HELD.items():
            if (more := grown(part, value)) > FLAT[who]:
                found.append(f"{IN_WORDS[who]}: {name} grew by {more:.1%}; {FLAT[who]:.0%} are allowed")
    windows = sums.get("windows", 0)
    for name, words in (("stepless", "no steps of some ranks"), ("unwatched", "of no process that a rank had started")):
        if sums.get(name, 0) > (1 - _MOST) * windows:
            found.append(f"{sums[name]:.0f} of {windows:.0f} windows told {words}")
    for ratios, limit, words in zip(
        slowed(samples), (SLOWER, SLOWER_IN_MEAN), ("median step", "mean of the steps"), strict=True
    ):
        if not _too_few_rounds(case, samples, ratios) and (more := statistics.median(ratios)) > limit:
            found.append(f"the {words} was {more:.1%} longer while it was observed; {limit:.0%} are allowed")
    with_s, without_s = (longest_fork_s(samples, observed=observed) for observed in (True, False))
    if with_s > max(MOST_FORK_S, without_s):
        found.append(f"a fork of the host took {with_s:.2f} s; without an observer {without_s:.2f} s at most")
    return found


def too_little(case: str, samples: Sequence[Sample]) -> list[str]:
    """What cannot be judged yet."""
    counts = {f"settled samples of {IN_WORDS[who]}": (len(settled(samples, who)), LEAST[who]) for who in SORTS[case]}
    found = [
        f"too little to judge: {seen} {what}, {least} are needed"
        for what, (seen, least) in counts.items()
        if seen < least
    ]
    ratios, _ = slowed(samples)
    return found + (
        ["too little to judge: steps with and without an observer"] if _too_few_rounds(case, samples, ratios) else []
    )


def _too_few_rounds(case: str, samples: Sequence[Sample], ratios: Sequence[float]) -> bool:
    alone = sum(one.steps for one in samples if one.who == Who.NOBODY)
    return len(ratios) < _LEAST_ROUNDS[case] or alone < _LEAST_STEPS


HEADER = f"{'minutes':>8}{'samples':>8}{'held MB':>9}{'fds':>5}{'peak MB':>9}{'CPU':>7}{'fork ms':>9}{'step ms':>9}{'without':>9}"


def table(case: str, samples: Sequence[Sample], ranks: int, every_s: float = 600.0) -> list[str]:
    """A line for each ten minutes of each piece, then what counts."""
    if not samples:
        return [HEADER]
    lines, done_s = [HEADER], 0.0
    for piece in pieces_of(samples):
        for number in range(int(piece[-1].at_s // every_s) + 1):
            part = [one for one in piece if number * every_s <= one.at_s < (number + 1) * every_s]
            lines += [_line(part, (done_s + part[-1].at_s + part[-1].seconds) / 60)] if part else []
        done_s += piece[-1].at_s + piece[-1].seconds
    return lines + sums(case, samples, ranks)


def sums(case: str, samples: Sequence[Sample], ranks: int) -> list[str]:
    """Whether what observes is flat, and what it costs the host and the job."""
    lines = []
    for who in SORTS[case]:
        found = settled(samples, who)
        rss, descriptors = (grown(found, value) for value in HELD.values())
        lines.append(
            f"{IN_WORDS[who]}: {len(found)} samples after settling of {len(pieces_of(found))} pieces; memory {rss:+.1%} "
            f"({slope_mb_per_hour(found):+.2f} MB an hour), descriptors {descriptors:+.1%}"
        )
    seen = [one for one in samples if one.who != Who.NOBODY]
    above, by_probes = (
        sum(value > LONGEST_FORK_S * 1e3 for value in values)
        for values in ([one.fork_ms for one in seen], [one.probes_ms for one in seen])
    )
    share, (with_s, without_s) = (
        share_of_a_core(samples),
        (longest_fork_s(samples, observed=one) for one in (True, False)),
    )
    lines.append(
        f"longest fork {with_s:.3f} s with, {without_s:.3f} s without; above {LONGEST_FORK_S:g} s in {above} of {len(seen)} samples; "
        f"waiting for probes {longest_wait_s(seen):.3f} s, above {LONGEST_FORK_S:g} s in {by_probes}"
    )
    lines.append(f"CPU {share:.2%} of a core, {share / ranks:.3%} for each of {ranks} ranks")
    with_it, alone = steps_of(seen), steps_of([one for one in samples if one.who == Who.NOBODY])
    if with_it and alone:
        lines.append(
            f"steps: median {with_it[0]:.2f} ms with, {alone[0]:.2f} ms without; mean {with_it[1]:.2f} and {alone[1]:.2f} ms"
        )
    medians, means = slowed(samples)
    if medians:
        lines.append(
            f"in {len(medians)} rounds, to the pauses beside each: median {statistics.median(medians):+.1%}, "
            f"mean {statistics.median(means):+.1%}"
        )
    return lines


def _line(part: Sequence[Sample], minutes: float) -> str:
    held = [one for one in part if one.who in (Who.HELD, Who.WATCH) and one.rss_mb]
    steps = [steps_of([one for one in part if (one.who != Who.NOBODY) == kind]) for kind in (True, False)]
    return (
        f"{minutes:>8.1f}{len(part):>8}{held[-1].rss_mb if held else 0:>9.1f}{held[-1].fds if held else 0:>5.0f}"
        f"{max((one.rss_mb for one in part if one.who == Who.ONCE), default=0):>9.1f}{share_of_a_core(part):>7.1%}"
        f"{max(one.fork_ms for one in part):>9.1f}" + "".join(f"{one[1] if one else 0:>9.2f}" for one in steps)
    )
