"""Find jobs by identity, title, or a prefix of these; and mark job names with their users. Pure.

A title is not unique: two runs of one script share it, and it matches both. Nor is the name that a
process claims for its job: anybody may claim it. A job belongs to one user, so its full name
includes that user (`of_user`); root's does not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

_OF_USER = re.compile(r" of user \d+$")


def of_user(job: str, owner: int) -> str:
    """Append the owner to a job's name, once; not for root and unknown users."""
    whose = f" of user {max(owner, 0)}"
    name = job.removesuffix(whose)
    return name + whose if owner > 0 or _OF_USER.search(name) else name


def claimed_name(job: str, owner: int) -> str:
    """Remove this user's suffix from a name that a process claims, so that only the census can set
    it.
    """
    whose = f" of user {owner}"
    while job.endswith(whose):
        job = job.removesuffix(whose)
    return job


def names_a_user(job: str) -> bool:
    """Tell whether a name has the form of some user's job."""
    return _OF_USER.search(job) is not None


def without_user(job: str) -> str:
    """Remove the user from a job's name."""
    return _OF_USER.sub("", job)


def shown(jobs: Iterable[str]) -> dict[str, str]:
    """Map names from `of_user` to display names: without the user where unambiguous."""
    known = tuple(jobs)
    said = Counter(map(without_user, known))
    return {job: without_user(job) if said[without_user(job)] == 1 else job for job in known}


def matching(wanted: str, titles: Mapping[str, str]) -> tuple[str, ...]:
    """Select the jobs (identity → title) meant by a text: equal to the whole name, else beginning
    with it.
    """
    for found in (
        [job for job in titles if job == wanted],
        [job for job in titles if without_user(job) == wanted],
        [job for job, title in titles.items() if title == wanted],
        [job for job, title in titles.items() if wanted and (job.startswith(wanted) or title.startswith(wanted))],
    ):
        if found:
            return tuple(sorted(found))
    return ()


def names(titles: Mapping[str, str]) -> dict[str, str]:
    """Map each job to a unique display name: its title, with the identity where titles are shared
    or missing.
    """
    shared = Counter(titles.values())
    return {
        job: title if title and shared[title] == 1 else f"{title} [{job}]" if title else job
        for job, title in titles.items()
    }
