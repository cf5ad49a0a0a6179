"""Jobs by the names that people give them: their identity, their title, or how one of these begins. Pure.

A title is not unique: two runs of one script share it, and both are meant by it. Nor is what a process says of its job: anybody may say
the same. A job is one user's, so its name is whole with the user whose it is (`of_user`); root's goes without.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping

_OF_USER = re.compile(r" of user \d+$")


def of_user(job: str, owner: int) -> str:
    """A job's name with the user of the host whose it is: the same on hosts that call it so already. Root's and nobody's go without."""
    whose = f" of user {max(owner, 0)}"
    name = job.removesuffix(whose)
    return name + whose if owner > 0 or _OF_USER.search(name) else name


def said_by(job: str, owner: int) -> str:
    """The name that a process of this user says, without him: names of the census end with the user, and nobody else says such a one."""
    whose = f" of user {owner}"
    while job.endswith(whose):
        job = job.removesuffix(whose)
    return job


def says_a_user(job: str) -> bool:
    """Whether a name reads as that of some user's job."""
    return _OF_USER.search(job) is not None


def without_user(job: str) -> str:
    """The name that the job's own processes say."""
    return _OF_USER.sub("", job)


def shown(jobs: Iterable[str]) -> dict[str, str]:
    """Names as of_user gives them → what is shown: without the user where no other's job has the name."""
    known = tuple(jobs)
    said = Counter(map(without_user, known))
    return {job: without_user(job) if said[without_user(job)] == 1 else job for job in known}


def matching(wanted: str, titles: Mapping[str, str]) -> tuple[str, ...]:
    """Of jobs (identity → title) those that are meant: by the whole name, else by how it begins."""
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
    """By job what it is called beside the others: its title; where two share it, or there is none, its identity as well."""
    shared = Counter(titles.values())
    return {
        job: title if title and shared[title] == 1 else f"{title} [{job}]" if title else job
        for job, title in titles.items()
    }
