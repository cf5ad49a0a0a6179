"""Of what a store names: the objects of one moment of each job, of the newest moments the one that most hosts have. Pure.

Names are anybody's who may write there: one byte may be called the windows of 400 hosts. So a moment of several that was chosen by its
names is looked at before it is believed: what says that it holds most hosts, and whether anything in it can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.observer.window.store.objects import Found

NEWEST = 5  # moments of a job: hosts that are late with one are not late with five
_SAME_MOMENT_S = 5  # windows begin at multiples of it
_TOGETHER_S = 120.0  # between the objects of one moment: a minute of tries, and what a host needs to end a window
_SAMPLE = 16  # of one moment those that claim most, then as many spread over it: of junk, or another version, not one is a window
_ROUNDS = 3
_ASKED_MOST = NEWEST * _SAMPLE  # of one job: newest moments of a large fleet, and more of a few hosts
HostsIn = Callable[[Sequence[Found]], Sequence[int]]  # of how many hosts each is in truth; none where it cannot be read


@dataclass(frozen=True, slots=True)
class Best:
    """Of the objects of a store: the paths of one moment of each job; and `absent` and `together` as in Sources."""

    chosen: set[str]
    absent: list[Found]
    together: list[Found]


def newest(found: Sequence[Found], hosts_in: HostsIn, notes: list[Note]) -> Best:
    """Of the objects of a store; `notes` is told of the moments that are left."""
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
        if len(best) < len(mine) and all(each.key.host for each in best):  # of what was put together nobody knows whose
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
    """What was looked at of one job. `seen`: of how many hosts it is, by path; `left`: how many more may be looked at."""

    hosts_in: HostsIn
    seen: dict[str, int] = field(default_factory=dict)
    left: int = _ASKED_MOST

    def at(self, some: Sequence[Found]) -> Sequence[Found]:
        """Look at those that were not looked at yet, all together; those."""
        new = [each for each in some if each.path not in self.seen][: self.left]
        self.left -= len(new)
        for each, hosts in zip(new, self.hosts_in(new) if new else (), strict=True):
            self.seen[each.path] = min(hosts, each.key.hosts)
        return new


def _best(moments: list[Sequence[Found]], hosts_in: HostsIn) -> tuple[Sequence[Found], int]:
    """The moment with most hosts of the newest, the first where several have them; and how many moments were taken out, as nothing of
    them can be read. Where the looks are used up, by what is known then; where nothing of all that was looked at can be read, the first."""
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
    """As its objects say, those that were looked at in truth."""
    return sum(looks.seen.get(each.path, each.key.hosts) for each in moment)


def _lies(moment: Sequence[Found], looks: _Looks) -> bool:
    """Whether something of a moment that says that it is of several hosts is of fewer. Where all that were looked at together say the truth
    the others are believed; else as large a part of them as of those that were looked at last."""
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
    """Whether anything that was looked at can be read; of the objects of one host one is looked at, and some more where that one cannot."""
    if any(looks.seen.get(each.path) for each in moment):
        return True
    some = _spread([each for each in moment if each.key.host])
    return any(looks.seen[each.path] for part in (some[:1], some[1:]) for each in looks.at(part))


def _spread(some: Sequence[Found]) -> Sequence[Found]:
    return [some[len(some) * at // _SAMPLE] for at in range(_SAMPLE)] if len(some) > _SAMPLE else some


def _moments(newest_first: Sequence[Found]) -> list[Sequence[Found]]:
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
    """Without what came before the moment that it says: a few hosts' clocks are ahead. Where many are it is the store's that is behind."""
    ahead = {each.path for each in found if each.key.start > each.put_s}
    return [each for each in found if each.path not in ahead] if 0 < 2 * len(ahead) < len(found) else found
