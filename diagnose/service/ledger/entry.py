"""What a ledger holds: time by kind, and pauses that are alike as one entry. Frozen, pure.

Times of day are Unix seconds. All lists are bounded, so that a ledger's size does not grow with
steps or hours.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

RANKS_MOST = 32  # ranks that are counted by number in one entry
RECENT_MOST = 16  # last occurrences, from which the recurrence is found
TRIES = 3  # windows that are recorded to name one entry
_NEARLY_ALL = 0.75  # share of a host's ranks from which all of them pause


class Kind(Enum):
    """What a stretch of time was. `PRODUCTIVE` has no entries, only seconds."""

    PRODUCTIVE = "productive"
    STARTUP = "start-up"
    GC = "gc"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    LOADER = "loader"
    PAUSE = "pause"  # of a function that is none of these, or not known
    HANG = "hang"
    DOWN = "down"  # between the end of a run and the begin of the next one
    REDONE = "redone"  # steps that a restarted job did twice
    SLOW = "slow"  # what steps took longer than before
    UNSEEN = "unseen"  # the service did not run, or the steps were not timed


PAUSES = (Kind.GC, Kind.CHECKPOINT, Kind.EVALUATION, Kind.LOADER, Kind.PAUSE)


class Scope(Enum):
    """Which of this host's ranks work in a pause while the others wait for them."""

    SOME = "some"
    ALL = "all"
    NONE = "none"  # all wait: for a rank of another host, or for the network
    UNKNOWN = "unknown"  # the marker of the steps does not measure waiting


@dataclass(frozen=True, slots=True)
class Whose:
    """The ranks of one pause; `ranks`: by number, empty unless the scope is `SOME`."""

    scope: Scope
    ranks: tuple[int, ...] = ()


UNKNOWN = Whose(Scope.UNKNOWN)


def scope_of(working: tuple[int, ...], here: int) -> Whose:
    """Return the scope of a pause in which the ranks `working` work, of `here` ranks on this host."""
    if not working:
        return Whose(Scope.NONE)
    if (here > 1 and len(working) >= _NEARLY_ALL * here) or here == 1:
        return Whose(Scope.ALL)
    return Whose(Scope.SOME, working)


@dataclass(frozen=True, slots=True)
class Event:
    """One stretch of lost time.

    `at`: begin, Unix time; `step`: number of its first step; `what`: its name, '' if unknown; `wrote`: a rank wrote
    to disk meanwhile.
    """

    kind: Kind
    at: float
    seconds: float
    step: int = 0
    what: str = ""
    whose: Whose = UNKNOWN
    wrote: bool = False


@dataclass(frozen=True, slots=True)
class Entry:
    """Events that are alike.

    `what`: function, or what a verdict named; `ranks`: how often each rank was in it; `of_more`:
    how often ranks that are not in `ranks`; `recent`: begin and first step of the last ones;
    `named`, `asked`: number of windows that saw one, and that were recorded in order to; `wrote`:
    in how many a rank wrote to disk.
    """

    kind: Kind
    what: str
    scope: Scope
    count: int
    seconds: float
    longest_s: float
    first: float
    last: float
    ranks: tuple[tuple[int, int], ...] = ()
    of_more: int = 0
    recent: tuple[tuple[float, int], ...] = ()
    named: int = 0
    asked: int = 0
    wrote: int = 0

    @property
    def mean_s(self) -> float:
        """Mean duration of its events, in seconds."""
        return self.seconds / max(self.count, 1)

    @property
    def saved_step(self) -> int:
        """Step at the last of its checkpoints; 0 if it has none."""
        return self.recent[-1][1] if self.kind is Kind.CHECKPOINT and self.recent else 0

    @property
    def is_told_apart(self) -> bool:
        """True if its cause is known: any kind but `PAUSE`, or a pause with a name."""
        return self.kind is not Kind.PAUSE or bool(self.what)

    def also(self, event: Event) -> Entry:
        """Return the entry with one more event."""
        ranks, more = _counted(self.ranks, event.whose.ranks)
        recent = (*self.recent, (event.at, event.step))[-RECENT_MOST:]
        return replace(
            self, count=self.count + 1, seconds=self.seconds + event.seconds, longest_s=max(self.longest_s, event.seconds),
            first=min(self.first, event.at), last=max(self.last, event.at), ranks=ranks, of_more=self.of_more + more,
            recent=recent, wrote=self.wrote + event.wrote,
        )  # fmt: skip

    def without(self, event: Event) -> Entry | None:
        """Return the entry without this event of it; None if it was the only one. `longest_s`, `first`, `last` remain."""
        if self.count <= 1:
            return None
        counts = dict(self.ranks)
        for rank in event.whose.ranks:
            counts[rank] = counts.get(rank, 1) - 1
        left = tuple((rank, count) for rank, count in counts.items() if count > 0)
        recent = tuple(row for row in self.recent if row != (event.at, event.step))
        return replace(
            self, count=self.count - 1, seconds=max(self.seconds - event.seconds, 0.0), ranks=left, recent=recent,
            wrote=max(self.wrote - event.wrote, 0),
        )  # fmt: skip


def entry_of(event: Event) -> Entry:
    """Make an entry with this first event."""
    empty = Entry(event.kind, event.what, event.whose.scope, 0, 0.0, 0.0, event.at, event.at)
    return empty.also(event)


def _counted(known: tuple[tuple[int, int], ...], more: tuple[int, ...]) -> tuple[tuple[tuple[int, int], ...], int]:
    """Count the ranks `more` once more; return the counts as (rank, count), and how many ranks had no room."""
    counts, left = dict(known), 0
    for rank in more:
        if rank in counts or len(counts) < RANKS_MOST:
            counts[rank] = counts.get(rank, 0) + 1
        else:
            left += 1
    return tuple(sorted(counts.items())), left


@dataclass(frozen=True, slots=True)
class Ledger:
    """Where the time of one job went, as one host saw it.

    `world`: ranks of the job on all hosts; `here`: on this host; `gpus`: whether they use GPUs;
    `began`: start of its first process; `until`: up to when all time is accounted for;
    `productive_s`: steps at their usual length; `steps`: seen; `runs`: starts of the job; `others`:
    number and seconds of pauses for which there was no entry left; `ended`: how, '' while it runs;
    `processes`: pid and start of ranks of the last run; `run`: digest of its arguments and folder, '' if unknown.
    """

    job: str
    user: str
    title: str
    world: int
    here: int
    gpus: bool
    began: float
    until: float
    productive_s: float = 0.0
    steps: int = 0
    step_s: float | None = None
    runs: int = 1
    entries: tuple[Entry, ...] = ()
    others: tuple[int, float] = (0, 0.0)
    ended: str = ""
    processes: tuple[tuple[int, int], ...] = ()
    saved_steps: int = 0  # number of the step at the last checkpoint
    first_step: int = 0  # number of the last step before this run
    run: str = ""

    @property
    def total_s(self) -> float:
        """Seconds from the start of its first process until `until`."""
        return max(self.until - self.began, 0.0)

    def seconds(self) -> dict[Kind, float]:
        """Sum the time by kind, in seconds; pauses without an entry (`others`) are pauses."""
        sums = {Kind.PRODUCTIVE: self.productive_s}
        for entry in self.entries:
            sums[entry.kind] = sums.get(entry.kind, 0.0) + entry.seconds
        if self.others[0]:
            sums[Kind.PAUSE] = sums.get(Kind.PAUSE, 0.0) + self.others[1]
        return sums
