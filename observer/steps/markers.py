"""Markers: timed calls of one rank from which its steps are told, and what of them is where in the job's code. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from rankscope.probes.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Call:
    """A frame on the way to a place in the code: the function by name, file and first line, the place that it stands at, and the
    loops around that by their beginnings, outermost first."""

    function: tuple[str, str, int]
    at: int
    loops: tuple[int, ...] = ()


CallPath = tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Markers:
    """Timed calls of one rank in order of their start. Times in seconds since the window's start; symbols are small ints.

    `level`: symbols of calls after which the host is level with its GPU. `update`: symbols that end a gradient update (DDP's
    reducer waits for its buckets). `backward`: symbols of backward passes. `site`: where in the job's code each call was made,
    0 where that is not known. `optimiser_s`: when the thread was seen inside an optimiser. `interrupted`: whether calls that do not
    come in every iteration were left out between this one and the one before it. `absence`: of a call on a library's thread the
    absence of the training thread in which it ended, by its number from 1; 0 where that thread was on a CPU. `dispatch_s`,
    `dispatch_site`: when that thread handed compiled functions over to a library (JAX), and where in the job's code. `path`: of each
    call, which of `paths` it was made by; -1 where that is not known, or the call was another thread's. `unmarked_s`: when collectives
    began that are no markers: inside another call (hooks of a backward pass), or on another thread.
    """

    symbol: Ints
    start_s: Floats
    end_s: Floats
    level: frozenset[int] = frozenset()
    update: frozenset[int] = frozenset()
    backward: frozenset[int] = frozenset()
    site: Ints | None = None
    optimiser_s: Floats = field(default_factory=lambda: np.empty(0))
    interrupted: Bools | None = None
    absence: Ints | None = None
    dispatch_s: Floats = field(default_factory=lambda: np.empty(0))
    dispatch_site: Ints = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    path: Ints | None = None
    paths: tuple[CallPath, ...] = ()
    unmarked_s: Floats = field(default_factory=lambda: np.empty(0))

    def __len__(self) -> int:
        return len(self.symbol)

    def where(self, kept: Bools | slice) -> Markers:
        """Some of them."""
        return replace(
            self,
            symbol=self.symbol[kept],
            start_s=self.start_s[kept],
            end_s=self.end_s[kept],
            site=None if self.site is None else self.site[kept],
            interrupted=None if self.interrupted is None else self.interrupted[kept],
            absence=None if self.absence is None else self.absence[kept],
            path=None if self.path is None else self.path[kept],
        )

    def keys(self) -> tuple[Ints, Ints]:
        """What tells calls apart, symbol and site: the distinct pairs (rows), and which of them each marker is."""
        site = np.zeros(len(self), dtype=np.int64) if self.site is None else self.site
        pairs, key = np.unique(np.stack([self.symbol, site], axis=1), axis=0, return_inverse=True)
        return pairs, key.reshape(-1).astype(np.int64)

    def apart_s(self, key: Ints) -> Floats:
        """How far apart the passages of each place (`keys`) are: the time between two calls from it, at a moment taken at random.

        So a burst of calls is one passage, however many they are.
        """
        order = np.argsort(key, kind="stable")
        of_place = np.split(self.start_s[order], np.cumsum(np.bincount(key))[:-1])
        first_s, last_s = self.start_s[0], self.end_s.max()
        return np.array([_usually_apart_s(np.concatenate(([first_s], one, [last_s]))) for one in of_place])

    def of(self, symbols: frozenset[int]) -> Bools:
        """Which of them are calls of these functions."""
        return np.isin(self.symbol, list(symbols))


def _usually_apart_s(time_s: Floats) -> float:
    """The time between two of these instants in which half of the whole lies."""
    gaps = np.sort(np.diff(time_s))
    share = np.cumsum(gaps)
    return float(gaps[np.searchsorted(share, share[-1] / 2)])
