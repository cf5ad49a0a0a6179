"""Visits of users, read and prepared."""

from __future__ import annotations

from dataclasses import dataclass

import knobs
import numpy as np
import torch

USERS, ITEMS, HISTORY = 5000, 3000, 16


@dataclass
class Visit:
    user: int
    items: np.ndarray
    clicked: float


class VisitLog:
    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)

    def read_visit(self) -> Visit:
        visit = Visit(
            int(self.draw.integers(USERS)), self.draw.integers(0, ITEMS, HISTORY), float(self.draw.random() < 0.3)
        )
        knobs.slow["read_visit"]()
        return visit

    def batch(self, size: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        visits = [self.read_visit() for _ in range(size)]
        users = torch.tensor([visit.user for visit in visits])
        items = torch.tensor([deduplicate(visit.items) for visit in visits])
        return users, items, torch.tensor([visit.clicked for visit in visits])


def deduplicate(items: np.ndarray) -> list[int]:
    kept = list(dict.fromkeys(items.tolist()))
    knobs.slow["deduplicate"]()
    return kept + [0] * (HISTORY - len(kept))
