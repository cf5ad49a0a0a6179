"""Jobs by the names that people give them: their identity, their title, or how one of these begins. Pure.

A title is not unique: two runs of one script share it, and both are meant by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping


def matching(wanted: str, titles: Mapping[str, str]) -> tuple[str, ...]:
    """Of jobs (identity → title) those that are meant: by the whole name, else by how it begins."""
    for found in (
        [job for job in titles if job == wanted],
        [job for job, title in titles.items() if title == wanted],
        [job for job, title in titles.items() if wanted and (job.startswith(wanted) or title.startswith(wanted))],
    ):
        if found:
            return tuple(sorted(found))
    return ()


def names(titles: Mapping[str, str]) -> dict[str, str]:
    """By job what it is called beside the others: its title; where two share it, or there is none, its identity as well."""
    shared = Counter(titles.values())
    return {
        job: title if title and shared[title] == 1 else f"{title} [{job}]" if title else job
        for job, title in titles.items()
    }
