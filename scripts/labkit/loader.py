"""Batches made by worker processes, with the data loader of PyTorch, for a job started with `--workers`."""

from __future__ import annotations

import itertools
import select
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Batch = tuple[Tensor, Tensor]


class Samples(IterableDataset[Batch]):
    """What a worker yields: whatever `make_batch` makes, after the store that keeps the samples has answered."""

    def __init__(self, make_batch: Callable[[int], Batch], fetch_s: float) -> None:
        self._make_batch = make_batch
        self._fetch_s = fetch_s

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        for number in itertools.count(info.id if info else 0):
            self.fetch()
            yield self._make_batch(number)

    def fetch(self) -> None:
        """Wait for the store."""
        if self._fetch_s:
            select.select([], [], [], self._fetch_s)


class Loader:
    """The batches of one rank. Orders: {"workers": n} and {"fetch_s": x}, seconds the store takes to answer; both start it anew."""

    def __init__(self, make_batch: Callable[[int], Batch], workers: int) -> None:
        self._make_batch = make_batch
        self._usual = workers
        self._settings: tuple[int, float] | None = None
        self._batches: Iterator[Batch] | None = None

    def follow(self, orders: dict[str, Any]) -> None:
        settings = (int(orders.get("workers", self._usual)), float(orders.get("fetch_s", 0.0)))
        if self._usual and settings != self._settings:
            self._settings = settings
            self._batches = None  # its workers end with it
            workers, fetch_s = settings
            # One batch in advance per worker; None: a batch is what the data set yields.
            loader = DataLoader(
                Samples(self._make_batch, fetch_s), batch_size=None, num_workers=workers, prefetch_factor=1
            )
            self._batches = iter(loader)

    def next_batch(self) -> Batch:
        assert self._batches is not None
        return next(self._batches)
