"""A training loop of accelerate. The same script is started by `accelerate launch`, by mpirun, or by debug_launcher."""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import knobs
import torch
import torch.nn.functional as F
from accelerate import Accelerator, debug_launcher
from torch import nn
from torch.utils.data import DataLoader, Dataset

VOCABULARY, LENGTH, CLASSES = 1024, 48, 8
WORDS = ["good", "bad", "fine", "poor", "great", "weak", "strong", "slow", "fast", "plain"]


class Reviews(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> tuple[str, int]:
        return read_review(index), index % CLASSES


def read_review(index: int) -> str:
    review = " ".join(random.Random(index).choices(WORDS, k=LENGTH))
    knobs.slow["read_review"]()
    return review


def clean(review: str) -> list[int]:
    tokens = [sum(word.encode()) % VOCABULARY for word in review.lower().split()]
    knobs.slow["clean"]()
    return tokens


def collate(samples: list[tuple[str, int]]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.tensor([clean(review) for review, _ in samples]), torch.tensor([label for _, label in samples])


class Model(nn.Module):
    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, width)
        self.layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.embed(tokens)).mean(1))


def train(out: Path) -> None:
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    # Batches are made in the training process: num_workers is left at its default.
    loader = DataLoader(Reviews(), 32, collate_fn=collate)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    knobs.begin(out, accelerator.process_index)
    step = 0
    for _ in range(1_000_000):
        for tokens, labels in loader:
            loss = F.cross_entropy(model(tokens), labels)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            if step % 10 == 0:
                mean = accelerator.reduce(loss.detach(), "mean")
                accelerator.print(f"step {step} loss {float(mean):.4f}", flush=True)
            knobs.step(step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--debug-launcher", type=int, metavar="N", help="start N processes, as one does in a notebook")
    args = parser.parse_args()
    if args.debug_launcher:
        debug_launcher(train, (args.out,), num_processes=args.debug_launcher)
    else:
        train(args.out)


if __name__ == "__main__":
    main()
