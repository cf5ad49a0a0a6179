"""The entries of one ledger: which pauses are alike, what they are called, and how many there may be. Pure.

Pauses are alike if as many ranks work in them (some, all, none of this host) and they last as long,
within a factor `ALIKE`; its square for one that comes when the next is expected: the first garbage
collection of a process takes twice as long as those after it. Of several entries that a pause could
belong to, the one counts at whose recurrence it comes, then the one of its ranks, then the nearest
in length. A window names the pause that it saw, and with it those that are alike.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from rankscope.diagnose import limits
from rankscope.diagnose.service.ledger import recurrence
from rankscope.diagnose.service.ledger.entry import PAUSES, Entry, Event, Kind, Scope, Whose, entry_of
from rankscope.diagnose.service.ledger.naming import SeenPause
from rankscope.diagnose.service.ledger.recurrence import Recurrence

MOST = 48
ALIKE = 2.0
_LATEST = 32  # pauses that a window may still name
_NAMED_LEAST = 0.3  # share of a pause that a function must last to be it
_OFF_S = 2.0  # between begins of a pause as tier 0 and as a window see it
_UNFIT, _OTHERS = 0.5, 0.25  # of not coming at its time, and of other ranks, against a length that is e times as long


@dataclass(slots=True)
class Entries:
    """The entries, by a number of their own.

    `others`: count and seconds of those without room; `saved_steps`: step of the last checkpoint among these.
    """

    step_s: float | None = None
    others: tuple[int, float] = (0, 0.0)
    saved_steps: int = 0
    version: int = 0  # counts changes
    _of: dict[int, Entry] = field(default_factory=dict)
    _next: int = 0
    _latest: deque[tuple[Event, int]] = field(default_factory=lambda: deque(maxlen=_LATEST))

    @staticmethod
    def of(known: Iterable[Entry], others: tuple[int, float] = (0, 0.0)) -> Entries:
        """Make entries from stored ones. `others`: number and seconds of those without room."""
        made = Entries(others=others)
        for entry in known:
            made._put(entry)
        return made

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self._of.values()))

    def __len__(self) -> int:
        return len(self._of)

    def numbered(self) -> Iterator[tuple[int, Entry]]:
        """Yield the entries with their numbers."""
        yield from tuple(self._of.items())

    def recurs(self, entry: Entry) -> Recurrence | None:
        """Return the recurrence of an entry, if it has one."""
        return recurrence.find(entry.recent, self.step_s)

    def add(self, event: Event) -> None:
        """Add an event to the entry of events like it, or make a new entry; ignore an event without duration."""
        if event.seconds <= 0:
            return
        self.version += 1
        number = self._match(event)
        if number is None:
            self._latest.append((event, self._put(_by_what_was_written(entry_of(event)))))
        else:
            self._of[number] = _by_what_was_written(self._of[number].also(event))
            self._latest.append((event, number))

    def extend(self, kind: Kind, seconds: float) -> None:
        """Add seconds to the last entry of a kind, if there is one."""
        number = max((number for number, one in self._of.items() if one.kind is kind), default=None)
        if number is not None:
            self._of[number] = replace(self._of[number], seconds=self._of[number].seconds + seconds)

    def knows(self, event: Event) -> bool:
        """Tell whether there is an entry for an event like this one."""
        return self._match(event) is not None

    def asked(self, number: int) -> None:
        """Count a window that was recorded to name the entry of this number."""
        entry = self._of.get(number)
        if entry is not None:
            self.version += 1
            self._of[number] = replace(entry, asked=entry.asked + 1)

    def name(self, seen: Sequence[SeenPause]) -> bool:
        """Name the latest pauses that a window saw; return False if it saw none of them.

        Of several functions in one pause the longest counts.
        """
        named = False
        self.version += 1
        for event, number in tuple(self._latest):
            found = [one for one in seen if event.kind in PAUSES and _is_seen(event, one)]
            if found:
                self._name(event, number, max(found, key=lambda one: one.seconds))
                named = True
        return named

    def call(self, kind: Kind, what: str, whose: Whose) -> None:
        """Name the latest event of a kind that has no name yet, and set its ranks."""
        found = [row for row in self._latest if row[0].kind is kind and not row[0].what and row[1] in self._of]
        if found:
            self.version += 1
            self._move(*found[-1], replace(found[-1][0], what=what, whose=whose))

    def _name(self, event: Event, number: int, seen: SeenPause) -> None:
        """Name an entry by what a window saw of its `event`; merge it with an alike entry of that name.

        If a window gave it another name before, move only the event to the entry of the new name.
        """
        entry = self._of.get(number)
        if entry is None:
            return
        if entry.what == seen.what:
            self._of[number] = replace(entry, named=entry.named + 1)
        elif entry.named:  # alike in length only
            self._move(event, number, replace(event, kind=seen.kind, what=seen.what))
        else:
            same = next((at for at, one in self._of.items() if at != number and _is_same(one, entry, seen)), None)
            kind = entry.kind if seen.kind is Kind.PAUSE else seen.kind  # that it wrote is known all the same
            named = replace(entry, kind=kind, what=seen.what, named=1)
            if same is None:
                self._of[number] = named
            else:
                self._merge(number, same, named)

    def _move(self, event: Event, number: int, moved: Event) -> None:
        """Take an event out of entry `number`; add its named version `moved` where that belongs, as named by a window."""
        left = self._of[number].without(event)
        if left is None:
            del self._of[number]
        else:
            self._of[number] = left
        to = self._match(moved)
        if to is None:
            to = self._put(replace(entry_of(moved), named=1))
        else:
            self._of[to] = replace(self._of[to].also(moved), named=self._of[to].named + 1)
        at = self._latest.index((event, number))
        self._latest[at] = moved, to

    def _merge(self, number: int, into: int, named: Entry) -> None:
        """Drop entry `number`, and add its new version `named` to entry `into`, which has the same name."""
        self._of[into] = merged(self._of[into], named)
        del self._of[number]
        for at, (event, of) in enumerate(self._latest):
            if of == number:
                self._latest[at] = replace(event, kind=named.kind, what=named.what), into

    def _match(self, event: Event) -> int | None:
        """Return the number of the entry to which an event belongs; None if there is none."""
        found = [
            (self._unlike(entry, event), number) for number, entry in self._of.items() if self._may_be(entry, event)
        ]
        return min(found)[1] if found else None

    def _may_be(self, entry: Entry, event: Event) -> bool:
        """Tell whether an event may belong to an entry: a pause by name, length and scope, any other by kind and name."""
        if event.kind not in PAUSES:
            return (entry.kind, entry.what) == (event.kind, event.what)
        if entry.kind not in PAUSES or (event.what and (entry.kind, entry.what) != (event.kind, event.what)):
            return False
        if event.whose.scope not in (entry.scope, Scope.UNKNOWN):  # unknown: nobody looked
            return False
        apart = _apart(entry, event) / math.log(ALIKE)
        if apart <= 1.0 or apart > 2.0:
            return apart <= 1.0
        rhythm = self.recurs(entry)
        return rhythm is not None and rhythm.expects(event.at)

    def _unlike(self, entry: Entry, event: Event) -> float:
        """Return how unlike an event is to an entry, 0 at best: in length, in time of recurrence, and in ranks.

        Length counts as the absolute logarithm of the ratio to the mean. 0 for events that are no pauses.
        """
        if event.kind not in PAUSES:
            return 0.0
        unlike = _apart(entry, event)
        rhythm = self.recurs(entry)
        if rhythm is not None and not rhythm.expects(event.at):
            unlike += _UNFIT
        counts = dict(entry.ranks)
        mine = sum(counts.get(rank, 0) for rank in event.whose.ranks)
        usual = mine / (entry.count * max(len(event.whose.ranks), 1))  # share of its pauses with these ranks
        return unlike + _OTHERS * (1.0 - usual) if event.whose.ranks else unlike

    def _put(self, entry: Entry) -> int:
        """Store an entry under a new number, after making room if there are `MOST`; return the number."""
        if len(self._of) >= MOST:
            self._make_room()
        self._next += 1
        self._of[self._next] = entry
        return self._next

    def _make_room(self) -> None:
        """Drop the entry with least time, pauses first; its time goes to `others`, or to another entry of its kind."""
        least = min(self._of, key=lambda number: (self._of[number].kind not in PAUSES, self._of[number].seconds))
        gone = self._of.pop(least)
        self.saved_steps = max(self.saved_steps, gone.saved_step)
        if gone.kind in PAUSES:
            self.others = self.others[0] + gone.count, self.others[1] + gone.seconds
        else:  # its time stays what it was
            same = next((number for number, one in self._of.items() if one.kind is gone.kind), None)
            if same is None:
                self.others = self.others[0] + gone.count, self.others[1] + gone.seconds
            else:
                self._of[same] = merged(self._of[same], replace(gone, what=""))


def merged(one: Entry, other: Entry) -> Entry:
    """Add up two entries of the same kind; name and scope are those of `one`."""
    ranks = dict(one.ranks)
    for rank, count in other.ranks:
        ranks[rank] = ranks.get(rank, 0) + count
    kept = tuple(sorted(ranks.items()))[: max(len(one.ranks), len(other.ranks))]
    more = sum(ranks.values()) - sum(count for _, count in kept)
    recent = tuple(sorted({*one.recent, *other.recent}))[-max(len(one.recent), len(other.recent), 1) :]
    return replace(
        one, count=one.count + other.count, seconds=one.seconds + other.seconds,
        longest_s=max(one.longest_s, other.longest_s), first=min(one.first, other.first), last=max(one.last, other.last),
        ranks=kept, of_more=one.of_more + other.of_more + more, recent=recent, named=one.named + other.named,
        asked=max(one.asked, other.asked), wrote=one.wrote + other.wrote,
    )  # fmt: skip


def _apart(entry: Entry, event: Event) -> float:
    """Return |log(length of the event / mean length of the entry)|, 0 where they are equal."""
    return abs(math.log(max(event.seconds, 1e-9) / max(entry.mean_s, 1e-9)))


def _is_same(entry: Entry, unnamed: Entry, seen: SeenPause) -> bool:
    """Tell whether an entry has the name and kind that a window saw, and the scope of the entry `unnamed`."""
    return (entry.kind, entry.what) == (seen.kind, seen.what) and entry.scope is unnamed.scope


def _is_seen(event: Event, seen: SeenPause) -> bool:
    """Tell whether a pause that a window saw is this event: of its ranks, at its time, and a large enough part of it."""
    if event.whose.ranks and seen.rank not in event.whose.ranks:
        return False
    if seen.waits and event.whose.scope is not Scope.NONE:
        return False
    if seen.seconds < _NAMED_LEAST * event.seconds:
        return False
    reach_s = _OFF_S + event.seconds
    return any(abs(at - event.at) <= reach_s for at in seen.at)


def _by_what_was_written(entry: Entry) -> Entry:
    """Make a pause's entry a checkpoint if a rank wrote to disk in at least `limits.MOST` of its pauses."""
    writes = entry.kind is Kind.PAUSE and entry.wrote >= limits.MOST * entry.count
    return replace(entry, kind=Kind.CHECKPOINT) if writes else entry
