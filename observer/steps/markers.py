"""Markers: timed calls of one rank from which its steps are found, with their call sites. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from rankscope.probes.base.arrays import Bools, Floats, Ints


@dataclass(frozen=True, slots=True)
class Call:
    """A frame of a call path: the function by name, file and first line, its position, and the
    loops around that.

    Loops are given by their first code units, outermost first.
    """

    function: tuple[str, str, int]
    at: int
    loops: tuple[int, ...] = ()


CallPath = tuple[Call, ...]


@dataclass(frozen=True, slots=True)
class Markers:
    """Timed calls of one rank in order of their start. Times in seconds since the window's start;
    symbols are small ints.

    `level`: symbols of calls that synchronise the host with its GPU. `update`: symbols that end a
    gradient update (DDP's reducer waits for its buckets). `backward`: symbols of backward passes.
    `site`: call site of each call, 0 unknown. `optimiser_s`: when the thread was seen inside an
    optimiser. `interrupted`: calls that do not occur in every iteration were left out before this
    one. `absence`: for a call on a library's thread, the training thread's absence (numbered from
    1) in which it ended; 0 if that thread was on a CPU. `dispatch_s`,
    `dispatch_site`: when and where that thread dispatched compiled functions to a library (JAX).
    `path`: index into `paths` of each call; -1 if unknown, or if another thread made the call.
    `unmarked_s`: begins of collectives that are no markers: inside another call (hooks of a
    backward pass), or on another thread.
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
        """Select markers by a mask or slice; fields that are not per marker stay whole."""
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
        """Return the distinct pairs of symbol and site (rows), and the row of each marker."""
        site = np.zeros(len(self), dtype=np.int64) if self.site is None else self.site
        pairs, key = np.unique(np.stack([self.symbol, site], axis=1), axis=0, return_inverse=True)
        return pairs, key.reshape(-1).astype(np.int64)

    def apart_s(self, key: Ints) -> Floats:
        """Return for each pair of `keys` how far apart its calls are, in seconds, a burst counting as one passage.

        It is the interval between two of its calls (or an end of the markers' time) that contains a
        randomly chosen time. `key`: the pair of each marker.
        """
        order = np.argsort(key, kind="stable")
        of_place = np.split(self.start_s[order], np.cumsum(np.bincount(key))[:-1])
        first_s, last_s = self.start_s[0], self.end_s.max()
        return np.array([_usually_apart_s(np.concatenate(([first_s], one, [last_s]))) for one in of_place])

    def of(self, symbols: frozenset[int]) -> Bools:
        """Return a mask of the markers that are calls of these functions."""
        return np.isin(self.symbol, list(symbols))


def _usually_apart_s(time_s: Floats) -> float:
    """Return the interval length such that half of the whole time lies in intervals up to it."""
    gaps = np.sort(np.diff(time_s))
    share = np.cumsum(gaps)
    return float(gaps[np.searchsorted(share, share[-1] / 2)])
