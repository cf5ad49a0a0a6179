"""Batches made by worker processes, with the data loader of PyTorch, for a job started with `--workers`."""

from __future__ import annotations

import ctypes
import itertools
import select
from collections.abc import Callable, Iterator
from multiprocessing.sharedctypes import RawValue
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

Batch = tuple[Tensor, Tensor]


class Samples(IterableDataset[Batch]):
    """What a worker yields: whatever `make_batch` makes, after the store that keeps the samples has answered."""

    def __init__(self, make_batch: Callable[[int], Batch], fetch_s: Any) -> None:
        self._make_batch = make_batch
        self._fetch_s = fetch_s  # shared with the rank

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        for number in itertools.count(info.id if info else 0):
            self.fetch()
            yield self._make_batch(number)

    def fetch(self) -> None:
        """Wait for the store."""
        if self._fetch_s.value:
            select.select([], [], [], self._fetch_s.value)


class Loader:
    """The batches of one rank. Orders: {"workers": n}, which starts it anew; {"fetch_s": x}, seconds the store takes to answer."""

    def __init__(self, make_batch: Callable[[int], Batch], workers: int) -> None:
        self._make_batch = make_batch
        self._usual = workers
        self._workers: int | None = None
        self._fetch_s = RawValue(ctypes.c_double, 0.0)
        self._batches: Iterator[Batch] | None = None

    def follow(self, orders: dict[str, Any]) -> None:
        self._fetch_s.value = float(orders.get("fetch_s", 0.0))
        workers = int(orders.get("workers", self._usual))
        if self._usual and workers != self._workers:
            self._workers = workers
            self._batches = None  # its workers end with it
            # One batch in advance per worker; None: a batch is what the data set yields.
            loader = DataLoader(
                Samples(self._make_batch, self._fetch_s), batch_size=None, num_workers=workers, prefetch_factor=1
            )
            self._batches = iter(loader)

    def next_batch(self) -> Batch:
        assert self._batches is not None
        return next(self._batches)
