"""DDP from an endless stream in two loader processes of a fork server; every 60 steps a checkpoint is written by a thread."""

from __future__ import annotations

import argparse
import copy
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import knobs
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

LENGTH, VOCABULARY, BATCH = 48, 1024, 24


class Pages(IterableDataset):
    """Each worker follows the file of orders by itself: a fork server's children have nothing of the rank's memory."""

    def __init__(self, out: Path, rank: int) -> None:
        self.out, self.rank = out, rank

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        knobs.follow(self.out, self.rank)
        torch.set_num_threads(1)
        numbers = random.Random(f"{self.rank} {worker.id if worker else 0}")
        while True:
            yield self.download_page(numbers)

    def download_page(self, numbers: random.Random) -> torch.Tensor:
        page = torch.tensor(numbers.choices(range(VOCABULARY), k=LENGTH + 1))
        knobs.slow["download_page"]()
        return page


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, 96)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(96, 4, 192, batch_first=True, dropout=0.0) for _ in range(2)
        )
        self.head = nn.Linear(96, VOCABULARY)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        found = self.embed(words)
        for block in self.blocks:
            found = block(found)
        return self.head(found)


class Run:
    def __init__(self, out: Path) -> None:
        self.out, self.rank = out, dist.get_rank()
        self.model = DistributedDataParallel(Reader())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-4)
        self.writer: threading.Thread | None = None

    def mask_words(self, page: torch.Tensor) -> torch.Tensor:
        masked = page.clone()
        masked[torch.rand(len(page)) < 0.15] = 0
        knobs.slow["mask_words"]()
        return masked

    def save(self) -> None:
        if self.writer is not None:
            self.writer.join()
        state = copy.deepcopy(self.model.module.state_dict())
        self.writer = threading.Thread(target=torch.save, args=(state, self.out / "model.pt"), name="checkpoint")
        self.writer.start()

    def fit(self) -> None:
        pages = DataLoader(
            Pages(self.out, self.rank),
            BATCH,
            num_workers=2,
            multiprocessing_context="forkserver",
            persistent_workers=True,
        )
        knobs.begin(self.out, self.rank)
        for number, batch in enumerate(pages, 1):
            masked = torch.stack([self.mask_words(page) for page in batch])
            loss = nn.functional.cross_entropy(self.model(masked[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if number % 60 == 0 and self.rank == 0:
                self.save()
            knobs.step(number)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    Run(args.out).fit()


if __name__ == "__main__":
    main()
