"""`rankscope reputation`: GPUs and hosts that are always a little slow, over all jobs seen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from rankscope.diagnose.budgets import JOBS_MOST
from rankscope.diagnose.face.cli.output import complain, patience, print_json, print_table, tell, telling
from rankscope.diagnose.infer.fleet.gather import gather
from rankscope.diagnose.infer.fleet.labels import ints, labels
from rankscope.diagnose.infer.fleet.roll_call import RollCall, jobs_in, roll_call
from rankscope.diagnose.infer.fleet.sources import load
from rankscope.diagnose.infer.past.history import DEFAULT_FOLDER
from rankscope.diagnose.infer.past.reputation import PEERS_LEAST, Reputations, Repute, Vote
from rankscope.diagnose.infer.solve.votes import votes
from rankscope.diagnose.text import clean
from rankscope.observer.window.folder import Window
from rankscope.observer.window.store.summary import WINDOW
from rankscope.probes.base.arrays import Ints
from rankscope.probes.base.errors import EXIT_DEGRADED, EXIT_HEALTHY, EXIT_UNKNOWN, BadData

FILE = DEFAULT_FOLDER.parent / "reputation.sqlite"
_SHOWN = 10


def run(places: tuple[str, ...], *, keep: Path | None, as_json: bool, verbose: bool) -> int:
    """Add votes from these windows, print the named components; return 1 if there are any,
    3 without any votes.

    `keep`: the file of votes, None for the usual one.
    """
    book = Reputations(keep or FILE)
    with patience("reading windows of every moment"):
        new = book.add(_votes(load(places, every_moment=True).windows), time.time()) if places else 0
    known = book.all()
    named = [one for one in known if one.named]
    with telling("who is slow") as told:
        if as_json:
            print_json({"new_votes": new, "components": [_as_json(one) for one in known]})
        else:
            _print(known, named, verbose)
    return told.code(EXIT_DEGRADED if named else EXIT_HEALTHY if known else EXIT_UNKNOWN)


def _print(known: Sequence[Repute], named: Sequence[Repute], verbose: bool) -> None:
    """Print how many components are slow, and a table of them; with `verbose` at least the first ten of all."""
    if not known:
        tell(
            f"unknown: nothing was compared yet; `rankscope reputation DIR` takes in windows of jobs with {PEERS_LEAST} peers or more"
        )
        return
    tell(f"{'degraded' if named else 'healthy'}: {len(named)} of {len(known)} components are always a little slow")
    shown = known[: max(_SHOWN, len(named))] if verbose else named
    if shown:
        print_table(
            ("COMPONENT", "WHERE", "JOBS", "SLOWER BY", "EVIDENCE"),
            [
                (clean(f"{one.kind} {one.component}", 60), clean(one.host, 40), str(one.jobs), f"{100 * one.excess:.1f} %",
                 f"{one.nats:.1f} of {one.needed:.1f}")
                for one in shown
            ],
        )  # fmt: skip


def _votes(windows: Sequence[Window]) -> Iterator[Vote]:
    """Yield the votes of each job and window time; report what is left out."""
    if not windows:
        return
    roll = roll_call(windows)
    jobs = jobs_in(roll)
    asked = _windows_of(roll)
    if left := len(jobs) - len(asked):
        complain(
            f"{left} jobs are left out: {JOBS_MOST} others of the same window are asked, of each user the largest first"
        )
    for job in (job for job in jobs if job in asked):
        mine = sorted(asked[job], key=lambda number: windows[number].manifest.start)
        moments: list[list[Window]] = []
        for number in mine:
            window = windows[number]
            if moments and window.manifest.start - moments[-1][0].manifest.start < window.manifest.seconds / 2:
                moments[-1].append(window)
            else:
                moments.append([window])
        for moment in moments:
            try:
                found = votes(gather(moment, job))
            except BadData as error:  # unusable data of one job must not stop others
                complain(f"a moment of {clean(job, 60)} is left out: {error}")
                continue
            yield from found


def _windows_of(roll: RollCall) -> dict[str, list[int]]:
    """Windows by job, limited to JOBS_MOST jobs per window, each user's largest before any user's
    second.

    The limit is needed because each job reads the window again."""
    known = roll.ranks.filter(roll.ranks["job"].is_valid())
    job = labels(known, "job")
    keys = ints(known, WINDOW).astype(np.int64) * len(job.values) + job.codes
    pairs, of_row, ranks = np.unique(keys, return_inverse=True, return_counts=True)
    window, code = np.divmod(pairs, len(job.values))
    owner = np.full(len(pairs), -1, dtype=np.int64)
    np.maximum.at(owner, of_row.reshape(-1), ints(known, "owner"))
    order = np.lexsort((code, -ranks, owner, window))
    window, code, ranks, owner = window[order], code[order], ranks[order], owner[order]
    turn = _place_in(np.append(0, np.cumsum((np.diff(window) != 0) | (np.diff(owner) != 0)))[: len(window)])
    order = np.lexsort((code, -ranks, turn, window))
    window, code = window[order], code[order]
    place = _place_in(window)  # rank of the job in its window
    found: dict[str, list[int]] = {}
    for number, its in zip(window[place < JOBS_MOST].tolist(), code[place < JOBS_MOST].tolist(), strict=True):
        found.setdefault(job.values[its], []).append(number)
    return found


def _place_in(group: Ints) -> Ints:
    """Index of each entry within its group; group numbers rise."""
    return np.asarray(np.arange(len(group)) - np.searchsorted(group, group), dtype=np.int64)


def _as_json(one: Repute) -> dict[str, object]:
    """Convert one component's reputation to a JSON object."""
    return {
        "kind": one.kind, "component": clean(one.component, 100), "host": clean(one.host, 100), "jobs": one.jobs,
        "excess_percent": 100 * one.excess, "nats": one.nats, "needed_nats": one.needed, "named": one.named,
    }  # fmt: skip
