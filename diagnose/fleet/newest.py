"""Of what a store names: the objects of one moment of each job, of the newest moments the one that most hosts have. Pure.

Names are anybody's who may write there: one byte may be called the windows of 400 hosts. So a moment of several that was chosen by its
names is looked at before it is believed: what says that it holds most hosts, and whether anything in it can be read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rankscope.diagnose.verdict.note import Note, NoteCode
from rankscope.observer.window.store.objects import Found

NEWEST = 5  # moments of a job: hosts that are late with one are not late with five
_SAME_MOMENT_S = 5  # windows begin at multiples of it
_TOGETHER_S = 120.0  # between the objects of one moment: a minute of tries, and what a host needs to end a window
_LOOKED_AT = 4  # of one moment those that claim most: they are all alike where nobody lies
HostsIn = Callable[[Found], int]  # of how many hosts an object is in truth; none where it cannot be read


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
    left = 0
    for mine in of_job.values():
        moments = _moments(_not_from_the_future(mine))
        left += len(moments) - 1
        best = _best(moments, hosts_in) if len(moments) > 1 else moments[0]
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
        notes.append(Note(NoteCode.OTHER_MOMENTS, text))
    return Best(chosen, absent, together)


def _best(moments: list[Sequence[Found]], hosts_in: HostsIn) -> Sequence[Found]:
    """The moment with most hosts of the newest, the first where several have them. Moments of which nothing can be read are taken out, but
    where that is so of all."""
    seen: dict[str, int] = {}
    hosts: dict[float, int] = {}  # by when the moment begins
    first: Sequence[Found] = ()
    while moments:
        for moment in moments[:NEWEST]:
            if (begins := moment[0].key.start) not in hosts:
                hosts[begins] = sum(seen.get(each.path, each.key.hosts) for each in moment)
        at = max(range(len(moments[:NEWEST])), key=lambda number: hosts[moments[number][0].key.start])
        best = moments[at]
        first = first or best
        if _lies(best, seen, hosts_in):
            del hosts[best[0].key.start]
            continue
        if any(seen.get(each.path) for each in best) or any(hosts_in(each) for each in best if each.key.host):
            return best
        del moments[at]
    return first


def _lies(moment: Sequence[Found], seen: dict[str, int], hosts_in: HostsIn) -> bool:
    """Whether something of a moment that says that it is of several hosts is of fewer; `seen`: of how many all that was looked at is, by
    path. Where the first ones say the truth the others are believed."""
    lies = False
    claims = sorted((each for each in moment if not each.key.host), key=lambda each: -each.key.hosts)
    for number, each in enumerate(claims):
        if number >= _LOOKED_AT and not lies:
            break
        if each.path not in seen:
            seen[each.path] = min(hosts_in(each), each.key.hosts)
            lies = lies or seen[each.path] < each.key.hosts
    return lies


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
