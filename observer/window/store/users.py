"""Mark jobs of several hosts' windows with their users, so that one user's job never joins another's.

On one host the census separates jobs of several users (census/ranks.py). Another host knows nothing
of that: there a job of the same name may be another user's, or the same user's job may have another
name. So windows that are read together are renamed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from rankscope.observer.window.folder import Window
from rankscope.observer.window.jobs import of_user
from rankscope.observer.window.store.columns import ints, labels
from rankscope.observer.window.store.summary import WINDOW
from rankscope.probes.base.arrays import Ints


def by_user(window: Window) -> Window:
    """Rename the window's jobs to include their users."""
    return called(window, whose(window))


def rename_jobs(*groups: Sequence[Window]) -> tuple[list[Window], ...]:
    """Rename jobs in groups of windows where a name is ambiguous; other windows are unchanged.

    Ambiguous: one name belongs to several users, or one user's job has several names.
    """
    users = [[whose(window) for window in group] for group in groups]
    pairs = {pair for group in users for names in group for pair in names.items()}
    said, meant = Counter(job for job, _ in pairs), Counter(name for _, name in pairs)
    doubtful = {job: name for job, name in pairs if said[job] > 1 or meant[name] > 1}
    if not doubtful:
        return tuple(list(group) for group in groups)
    return tuple(
        [
            called(window, {job: name for job, name in names.items() if job in doubtful})
            for window, names in zip(group, mine, strict=True)
        ]
        for group, mine in zip(groups, users, strict=True)
    )


def whose(window: Window) -> dict[str, str]:
    """Map the jobs of a window to names with the user; ended ranks without owner follow the others."""
    return dict(_named(window.ranks, np.zeros(window.ranks.num_rows, np.int64))[1])


def called(window: Window, names: Mapping[str, str]) -> Window:
    """Return the window with its jobs renamed; itself if nothing changes."""
    if all(job == name for job, name in names.items()):
        return window
    jobs = tuple(names.get(job, job) for job in window.manifest.jobs)
    job = labels(window.ranks, "job")
    ranks = _with_jobs(window.ranks, job.codes, [names.get(each, each) for each in job.values])
    return replace(window, manifest=replace(window.manifest, jobs=jobs), ranks=ranks)


def ranks_by_user(ranks: pa.Table) -> pa.Table:
    """Rename the jobs in a table of ranks of several windows (column summary.WINDOW) to include
    their users.
    """
    of_row, pairs = _named(ranks, ints(ranks, WINDOW))
    return ranks if all(job == name for job, name in pairs) else _with_jobs(ranks, of_row, [name for _, name in pairs])


def _named(ranks: pa.Table, window: Ints) -> tuple[Ints, list[tuple[str, str]]]:
    """Number each row's job and window; return the numbers, and by number the name without and with
    the user.
    """
    job, owner = labels(ranks, "job"), ints(ranks, "owner")
    each, of_row = np.unique(window * max(len(job.values), 1) + job.codes, return_inverse=True)
    of_row = of_row.reshape(-1).astype(np.int64)
    user = np.full(len(each), -1, dtype=np.int64)
    np.maximum.at(user, of_row, owner)
    said = [job.values[key % len(job.values)] for key in each.tolist()]
    return of_row, [(name, of_user(name, uid) if name else name) for name, uid in zip(said, user.tolist(), strict=True)]


def _with_jobs(ranks: pa.Table, codes: Ints, names: Sequence[str]) -> pa.Table:
    """Replace the column of jobs; `codes`: by row the number of its name. Nulls remain."""
    different = {name: number for number, name in enumerate(dict.fromkeys(names))}
    numbers = np.array([different[name] for name in names], dtype=np.int32)[codes]
    column = pa.DictionaryArray.from_arrays(
        pa.array(numbers, mask=ranks["job"].is_null().to_numpy()), pa.array(list(different), pa.string())
    )
    place = ranks.schema.get_field_index("job")
    return ranks.set_column(place, ranks.schema.field(place), column.cast(ranks.schema.field(place).type))
