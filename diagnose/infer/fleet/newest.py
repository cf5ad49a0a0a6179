"""Choose which objects of a store to read: for each job the newest time with most hosts. Pure.

Object names are not trusted: anybody with write access can name one byte as windows of 400 hosts.
Where a job has windows of several times, the claimed host counts are checked on samples, and so is
whether anything can be read, before one is chosen.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rankscope.diagnose.infer.verdict.note import Note, NoteCode
from rankscope.observer.window.store.objects import Found

NEWEST = 5  # window times considered per job: no host is late by five
_SAME_MOMENT_S = 5  # windows begin at multiples of it
_TOGETHER_S = 120.0  # largest gap between uploads for one time: a minute of retries, and finishing a window
_SAMPLE = 16  # objects checked per time: largest claims first, then evenly spread; junk fails all of them
_ROUNDS = 3
_ASKED_MOST = NEWEST * _SAMPLE  # objects checked per job
HostsIn = Callable[[Sequence[Found]], Sequence[int]]  # actual number of hosts in each object; 0 if unreadable


@dataclass(frozen=True, slots=True)
class Best:
    """The chosen objects of a store: paths of one time for each job.

    `absent`, `together`: one object of each host without a chosen one; of hosts that have objects
    at other recent times, and of those that uploaded at about the same time.
    """

    chosen: set[str]
    absent: list[Found]
    together: list[Found]


def newest(found: Sequence[Found], hosts_in: HostsIn, notes: list[Note]) -> Best:
    """Choose the objects to read, per job those of the newest time with most hosts; note skipped times.

    `found`: all objects of the store; `hosts_in`: reads how many hosts objects really hold.
    """
    of_job: dict[str, list[Found]] = {}
    for each in sorted(found, key=lambda one: -one.key.start):
        of_job.setdefault(each.key.job, []).append(each)
    chosen: set[str] = set()
    absent: list[Found] = []
    together: list[Found] = []
    left = unreadable = 0
    for mine in of_job.values():
        moments = _moments(_not_from_the_future(mine))
        left += len(moments) - 1
        best, passed = _best(moments, hosts_in) if len(moments) > 1 else (moments[0], 0)
        unreadable += passed
        chosen.update(each.path for each in best)
        if len(best) < len(mine) and all(each.key.host for each in best):  # merged objects do not name their hosts
            here = {each.key.host for each in best} | {""}
            before = {each.key.host for moment in moments[:NEWEST] for each in moment} - here
            put_s = sorted(each.put_s for each in best)[len(best) // 2]
            of_host: dict[str, Found] = {}
            for each in mine:  # the newest first
                if each.key.host not in here and (each.key.host in before or abs(each.put_s - put_s) <= _TOGETHER_S):
                    known = of_host.setdefault(each.key.host, each)
                    if abs(each.put_s - put_s) < abs(known.put_s - put_s):
                        of_host[each.key.host] = each
            absent += (of_host[host] for host in sorted(of_host) if host in before)
            together += (each for host, each in of_host.items() if host not in before)
    if left:
        text = f"of {left + len(of_job)} moments in the store the newest common one of each job is judged; name a window to judge another"
        text += (
            f"; {unreadable} are passed over, as nothing that was looked at of them can be read" if unreadable else ""
        )
        notes.append(Note(NoteCode.OTHER_MOMENTS, text))
    return Best(chosen, absent, together)


@dataclass(slots=True)
class _Looks:
    """Checked objects of one job.

    `seen`: actual hosts by path; `left`: number of checks still allowed.
    """

    hosts_in: HostsIn
    seen: dict[str, int] = field(default_factory=dict)
    left: int = _ASKED_MOST

    def at(self, some: Sequence[Found]) -> Sequence[Found]:
        """Check those of `some` not checked before, in one batch, at most `left`; return only these new ones."""
        new = [each for each in some if each.path not in self.seen][: self.left]
        self.left -= len(new)
        for each, hosts in zip(new, self.hosts_in(new) if new else (), strict=True):
            self.seen[each.path] = min(hosts, each.key.hosts)
        return new


def _best(moments: list[Sequence[Found]], hosts_in: HostsIn) -> tuple[Sequence[Found], int]:
    """Return the objects of the newest time with most hosts, and how many times are skipped as unreadable.

    `moments`: objects by time, newest first. When the checks are used up, decide by what is known;
    if nothing could be read, return the first choice.
    """
    looks = _Looks(hosts_in)
    first: Sequence[Found] = ()
    left, passed = list(moments), 0
    while left:
        best = max(left[:NEWEST], key=lambda moment: _hosts(moment, looks))
        first = first or best
        if not looks.left:
            return (best, passed) if any(looks.seen.values()) else (first, 0)
        lies = _lies(best, looks)
        if not _is_readable(best, looks):
            left = [moment for moment in left if moment is not best]
            passed += 1
        elif not lies:
            return best, passed
    return first, 0


def _hosts(moment: Sequence[Found], looks: _Looks) -> int:
    """Number of hosts at one time: the actual one of checked objects, the claimed one of the others."""
    return sum(looks.seen.get(each.path, each.key.hosts) for each in moment)


def _lies(moment: Sequence[Found], looks: _Looks) -> bool:
    """Check objects that claim several hosts; return whether any holds fewer than claimed.

    If all of a sample tell the truth the rest is believed; else the claims of unchecked objects are
    scaled by the share of true ones in the last sample.
    """
    claims = sorted((each for each in moment if not each.key.host), key=lambda each: -each.key.hosts)
    lies = False
    part: Sequence[Found] = claims[:_SAMPLE]
    for _ in range(_ROUNDS):
        new = looks.at(part)
        true = sum(looks.seen[each.path] == each.key.hosts for each in new)
        if true == len(new):
            return lies
        lies = True
        part = _spread([each for each in claims if each.path not in looks.seen])
    for each in claims:
        looks.seen.setdefault(each.path, each.key.hosts * true // len(new))
    return lies


def _is_readable(moment: Sequence[Found], looks: _Looks) -> bool:
    """Whether any checked object is readable.

    Checks one object of a single host, and more if that one fails.
    """
    if any(looks.seen.get(each.path) for each in moment):
        return True
    some = _spread([each for each in moment if each.key.host])
    return any(looks.seen[each.path] for part in (some[:1], some[1:]) for each in looks.at(part))


def _spread(some: Sequence[Found]) -> Sequence[Found]:
    """At most _SAMPLE of these objects, evenly spread over the list."""
    return [some[len(some) * at // _SAMPLE] for at in range(_SAMPLE)] if len(some) > _SAMPLE else some


def _moments(newest_first: Sequence[Found]) -> list[Sequence[Found]]:
    """Group objects into times of _SAME_MOMENT_S seconds each, newest first."""
    if newest_first[0].key.start - newest_first[-1].key.start < _SAME_MOMENT_S:  # of a hundred thousand as well
        return [newest_first]
    moments: list[list[Found]] = []
    for each in newest_first:
        if moments and moments[-1][0].key.start - each.key.start < _SAME_MOMENT_S:
            moments[-1].append(each)
        else:
            moments.append([each])
    return [*moments]


def _not_from_the_future(found: Sequence[Found]) -> Sequence[Found]:
    """Drop objects uploaded before their claimed start (a host's clock runs ahead).

    If that is half of them or more the store's clock is slow: then keep all.
    """
    ahead = {each.path for each in found if each.key.start > each.put_s}
    return [each for each in found if each.path not in ahead] if 0 < 2 * len(ahead) < len(found) else found
