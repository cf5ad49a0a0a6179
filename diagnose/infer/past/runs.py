"""Recognise earlier runs of the same program, to which a launcher gives another name each time.

A job's name holds the id of its run. Runs are of one kind if the same user's ranks run the same
program with the same arguments in the same folder, by the observer's digest (census/describe.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b

from rankscope.observer.window.folder import Window
from rankscope.observer.window.store.users import called

_DIGEST_BYTES = 8


def kind_of_run(window: Window, job: str) -> str:
    """Digest of the programs that the ranks of a job run; '' unless it is known of all ranks."""
    rows = window.ranks.select(("job", "run")).to_pylist()
    return combined(str(row["run"] or "") for row in rows if row["job"] == job)


def combined(runs: Iterable[str]) -> str:
    """Digest of the different runs of a job's ranks; '' without any, or where one is unknown ('')."""
    different = sorted(set(runs))
    if not different or "" in different:
        return ""
    return blake2b("\0".join(different).encode(), digest_size=_DIGEST_BYTES).hexdigest()


def as_same_run(baseline: Sequence[Window], windows: Sequence[Window], job: str) -> list[Window]:
    """Rename the job in baseline windows to `job` where it is an earlier run of the same program.

    Only if none of them is of this job, and exactly one job in them is of the same kind and world
    size; else they are unchanged.
    """
    if any(job in window.ranks["job"].to_pylist() for window in baseline):
        return list(baseline)
    kinds, worlds = {kind_of_run(window, job) for window in windows} - {""}, _worlds(windows, job)
    jobs = {each for window in baseline for each in window.ranks["job"].to_pylist()}
    same = [
        each for each in sorted(jobs, key=str)
        if worlds & _worlds(baseline, each) and kinds & {kind_of_run(window, each) for window in baseline}
    ]  # fmt: skip
    return [called(window, dict.fromkeys(same, job)) for window in baseline] if len(same) == 1 else list(baseline)


def _worlds(windows: Iterable[Window], job: str) -> set[int]:
    """World sizes of a job; its number of ranks in a window where they do not say."""
    found = set[int]()
    for window in windows:
        mine = [row for row in window.ranks.select(("job", "world_size")).to_pylist() if row["job"] == job]
        found |= {int(row["world_size"] or len(mine)) for row in mine}
    return found
