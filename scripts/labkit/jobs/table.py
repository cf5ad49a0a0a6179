"""What the lab of jobs prints: lines of at most 80 columns where they are tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from labkit import verdicts
from labkit.jobs.beside import QUIET
from labkit.jobs.cases import Result
from labkit.jobs.faults import ALL
from labkit.jobs.rows import BY_NAME

# Rankscope's step against the job's own.
STEP_ERROR = 0.10


def case_line(result: Result) -> str:
    """One case, as it ends."""
    parts = [f"ranks {result.ranks}"] if result.ranks else []
    if result.before_s:
        parts.append(f"step {1e3 * result.before_s:.0f}→{1e3 * result.job_s:.0f} ms" if result.job_s else "no step")
    if len(result.sides_s) == 2:
        parts.append("healthy {:.0f} and {:.0f} ms".format(*(1e3 * side for side in result.sides_s)))
    if result.step_error is not None:
        parts.append(f"seen {100 * result.step_error:+.0f} %")
    if result.truth and result.truth.ranks:
        parts.append(f"truth: rank {result.truth.ranks[0]} {result.truth.function or ''}".rstrip())
    if result.beside is not None and result.beside > QUIET and not result.disturbed:
        parts.append(f"others used {100 * result.beside:.0f} % of the CPUs")
    if not result.sound:
        parts.append("ITS OWN LINES CONTRADICT THEMSELVES")
    return f"{', '.join(parts)} | {result.said}"


def table(results: Sequence[Result]) -> Iterator[str]:
    """Per row and fault how many were right, ranks and step; then the totals with what is wanted."""
    faults = [name for name in ALL if any(result.case.fault == name for result in results)]
    yield f"{'job':<17}" + "".join(f"{name[:7]:>8}" for name in faults) + f"{'ranks':>8}{'step':>8}"
    for row in BY_NAME.values():
        of_row = [result for result in results if result.case.row == row.name]
        if of_row:
            yield (
                f"{row.name:<17}"
                + "".join(f"{_right([r for r in of_row if r.case.fault == fault]):>8}" for fault in faults)
                + (f"{_share([r for r in of_row if r.ranks], ranks_right):>8}{_share(steps_of(of_row), step_right):>8}")
            )
    yield ""
    for fault in faults:
        among = _judged([result for result in results if result.case.fault == fault])
        if among:
            right = sum(is_right(result) for result in among)
            wanted = f"wanted: {100 * ALL[fault].wanted:.0f} %" if ALL[fault].wanted else "no target"
            yield f"{fault:<17}{right:>4} of {len(among):<4} right first ({100 * right / len(among):.0f} %; {wanted})"
    yield f"{'ranks':<17}{_share([r for r in results if r.ranks], ranks_right):>11} all under their own numbers (wanted: all)"
    yield f"{'step':<17}{_share(steps_of(results), step_right):>11} within 10 % of the job's own (wanted: all)"
    for result in results:
        if result.outcome == verdicts.IMPOSSIBLE:
            yield f"not possible here: {result.case.name}: {result.said}"


def is_right(result: Result) -> bool:
    return result.outcome == verdicts.FIRST


def ranks_right(result: Result) -> bool:
    return result.ranks is not None and result.ranks.all_right


def steps_of(results: Sequence[Result]) -> list[Result]:
    """Those in whose window the job made steps on every rank, and was not stopped in it."""
    standing = {"stopped", "dead", "building"}
    return [result for result in results if result.case.fault not in standing and result.ranks is not None]


def step_right(result: Result) -> bool:
    return result.step_error is not None and abs(result.step_error) <= STEP_ERROR


def good_enough(results: Sequence[Result]) -> bool:
    """Whether all that is wanted is met; cases that are not possible here count for nothing."""
    found = _judged(results)
    for name, kind in ALL.items():
        among = [result for result in found if result.case.fault == name]
        if sum(map(is_right, among)) < kind.wanted * len(among):
            return False
    return all(map(ranks_right, found)) and all(map(step_right, steps_of(found))) and all(r.sound for r in found)


def _judged(results: Sequence[Result]) -> list[Result]:
    return [result for result in results if result.outcome != verdicts.IMPOSSIBLE]


def _right(results: Sequence[Result]) -> str:
    among = _judged(results)
    return f"{sum(map(is_right, among))}/{len(among)}" if among else "-"


def _share(results: Sequence[Result], good: Callable[[Result], bool]) -> str:
    among = _judged(results)
    return f"{sum(map(good, among))}/{len(among)}" if among else "-"
