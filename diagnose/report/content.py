"""What a report shows, as frozen data: made from a fleet and its verdict (build.py), drawn by page.html."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.probes.arrays import Floats


@dataclass(frozen=True, slots=True)
class Headline:
    """What must be understood at a glance. `tone`: good | bad | doubt, which decides the colour."""

    status: str
    tone: str
    sentence: str
    price: str  # what it costs, in another currency than the sentence; '' where nobody is accused
    action: str
    about: str  # job, ranks, steps, moment


@dataclass(frozen=True, slots=True)
class Proof:
    """One line of evidence."""

    measure: str
    value: str
    expected: str
    against: bool


@dataclass(frozen=True, slots=True)
class Accused:
    """One suspect."""

    sentence: str
    code: str  # component/cause
    sure: str
    action: str
    proofs: tuple[Proof, ...]


@dataclass(frozen=True, slots=True)
class HeatFunction:
    """One row of the heat map. `waits`: time in it is waiting for others: nobody loses it there."""

    name: str
    place: str
    kind: str
    waits: bool
    accused: bool


@dataclass(frozen=True, slots=True)
class HeatRank:
    """One column of the heat map."""

    number: int
    host: str
    role: str
    accused: bool


@dataclass(frozen=True, slots=True)
class Heat:
    """Ranks x functions. `share`: of the rank's critical path, 0..1. `above_s`: seconds per step more than the median peer, never below
    0, NaN where that says nothing (waiting, no steps, no peers). `left_out`: ranks nearest to their peers, where there are too many."""

    functions: tuple[HeatFunction, ...]
    ranks: tuple[HeatRank, ...]
    share: Floats
    above_s: Floats
    left_out: int


@dataclass(frozen=True, slots=True)
class Track:
    """The steps of one rank. `parts_s`: parts x steps, in the order of timeline.PARTS; NaN where it has no such step."""

    who: str
    parts_s: Floats
    total_s: Floats


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps of the culprit above those of a peer. `bundled`: each bar is the longest of so many steps. `onset`: bar at which it
    began, -1 for none."""

    tracks: tuple[Track, ...]
    longest_s: float
    bundled: int
    onset: int
    onset_text: str


@dataclass(frozen=True, slots=True)
class Flame:
    """One frame of the culprit's stacks, a caller before whom it calls. `above_s`: more than the median peer, below 0 for less."""

    parent: int
    name: str
    place: str
    kind: str
    seconds: float
    above_s: float
    offset_s: float  # from the left edge
    depth: int


@dataclass(frozen=True, slots=True)
class FlameGraph:
    """`unit`: what the seconds are of: 'per step', or 'of the window'."""

    who: str
    peers: int
    unit: str
    frames: tuple[Flame, ...]
    more: tuple[Flame, ...]  # frames that take more than on the median peer by themselves, the worst first


@dataclass(frozen=True, slots=True)
class CounterLine:
    """One counter of the culprit beside its peers. The bars are shares of the largest of the three, 0..1; below 0 for none."""

    name: str
    meaning: str
    where: str
    value: str
    peers: str
    limit: str
    bar: float
    peers_bar: float
    limit_bar: float
    odd: bool


@dataclass(frozen=True, slots=True)
class Considered:
    """Somebody or something that was looked at and is not accused."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A frame in which ranks stand: a line of the tree, a caller before whom it calls. `level`: how often ranks parted above it.
    `ranks`: '' where they are those of the line before; `but`: the few that were with them in the caller and are not here.
    `waits_for`: what they do there, of the last frame; '' in the others."""

    level: int
    ranks: str
    but: str
    name: str
    place: str
    waits_for: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on the page, from the top down. None and (): there is nothing to show."""

    title: str
    version: str
    headline: Headline
    others: tuple[str, ...]  # first lines on the other jobs in the same windows
    accused: tuple[Accused, ...]
    standing: tuple[Standing, ...]
    heat: Heat | None
    timeline: Timeline | None
    flames: FlameGraph | None
    counters: tuple[CounterLine, ...]
    counters_text: str
    considered: tuple[Considered, ...]
    course: tuple[str, ...]  # notes on how the steps ran
    unseen: tuple[str, ...]  # notes on what could not be seen
