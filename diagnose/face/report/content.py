"""Content of a report (the page) as frozen data, made by build.py and drawn by page.html."""

from __future__ import annotations

from dataclasses import dataclass

from rankscope.probes.base.arrays import Floats


@dataclass(frozen=True, slots=True)
class Headline:
    """Summary at the top of the page. `tone`: good | bad | doubt, for the colour."""

    status: str
    tone: str
    sentence: str
    price: str  # cost as idle ranks; '' without suspects
    action: str
    about: str  # job, ranks, steps, time


@dataclass(frozen=True, slots=True)
class Proof:
    """One line of evidence."""

    measure: str
    value: str
    expected: str
    against: bool


@dataclass(frozen=True, slots=True)
class Accused:
    """One suspect as shown on the page."""

    sentence: str
    code: str  # component/cause
    sure: str
    action: str
    proofs: tuple[Proof, ...]


@dataclass(frozen=True, slots=True)
class SpentOn:
    """One part of the budget of a step, as shown.

    `kind`: the class of its colour; `items`, `workers`: its largest parts, and what loader workers
    do meanwhile, in words.
    """

    kind: str
    words: str
    seconds: float
    percent: float
    items: tuple[str, ...]
    workers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SpentBar:
    """One bar of the budget: whose, and (kind, words, begin, width) of its pieces in permille."""

    who: str
    seconds: float
    pieces: tuple[tuple[str, str, float, float], ...]


@dataclass(frozen=True, slots=True)
class Spending:
    """The budget of a step: the parts of all ranks, and bars of the job and of suspect ranks."""

    of_window: bool
    seconds: float
    ranks: int
    line: str
    parts: tuple[SpentOn, ...]
    bars: tuple[SpentBar, ...]


@dataclass(frozen=True, slots=True)
class HeatFunction:
    """One row of the heat map.

    `waits`: time in it is waiting for other ranks, so that none is lost there.
    """

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
    """Heat map of ranks x functions.

    `share`: of the rank's critical path, 0..1; `above_s`: seconds per step above the median peer,
    at least 0, NaN if undefined (waiting, no steps, no peers); `left_out`: number of ranks not
    shown, nearest to their peers.
    """

    functions: tuple[HeatFunction, ...]
    ranks: tuple[HeatRank, ...]
    share: Floats
    above_s: Floats
    left_out: int


@dataclass(frozen=True, slots=True)
class Track:
    """Steps of one rank.

    `parts_s`: parts x steps, in the order of timeline.PARTS; NaN where a step is missing.
    """

    who: str
    parts_s: Floats
    total_s: Floats


@dataclass(frozen=True, slots=True)
class Timeline:
    """Steps of the shown rank above those of a peer.

    `bundled`: each bar is the longest of this many steps; `onset`: bar at which the slowness began,
    -1: none.
    """

    tracks: tuple[Track, ...]
    longest_s: float
    bundled: int
    onset: int
    onset_text: str


@dataclass(frozen=True, slots=True)
class Flame:
    """One frame of the shown rank's stacks, callers first.

    `above_s`: difference to the median peer.
    """

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
    """Flame graph of the shown rank.

    `unit`: what its seconds refer to, 'per step' or 'of the window'.
    """

    who: str
    peers: int
    unit: str
    frames: tuple[Flame, ...]
    more: tuple[Flame, ...]  # frames whose own time is above the median peer's, worst first


@dataclass(frozen=True, slots=True)
class CounterLine:
    """One counter of the shown rank next to its peers'.

    Bars: shares of the largest of the three, below 0: none.
    """

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
    """A rank or observation that was examined and is no suspect."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Standing:
    """A line of the stack tree: a frame in which ranks are, callers first.

    `level`: number of branchings above it; `ranks`: '' if the same as in the line before; `but`:
    the few ranks in the caller and not here; `waits_for`: what ranks do in the last frame, '' in
    others.
    """

    level: int
    ranks: str
    but: str
    name: str
    place: str
    waits_for: str


@dataclass(frozen=True, slots=True)
class Report:
    """Everything on the page, from the top. None and (): nothing to show."""

    title: str
    version: str
    headline: Headline
    others: tuple[str, ...]  # first lines on the other jobs in the same windows
    accused: tuple[Accused, ...]
    standing: tuple[Standing, ...]
    spending: Spending | None
    heat: Heat | None
    timeline: Timeline | None
    flames: FlameGraph | None
    counters: tuple[CounterLine, ...]
    counters_text: str
    considered: tuple[Considered, ...]
    course: tuple[str, ...]  # notes on how the steps ran
    unseen: tuple[str, ...]  # notes on what could not be seen
