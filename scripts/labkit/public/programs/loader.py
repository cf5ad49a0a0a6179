"""Pictures from loader workers. At fault by its fourth word: `reborn`, workers start anew each epoch and read their index again;
`few`, one worker makes what two are needed for; `baggage`, each sample brings the index along; `bound`, rank and worker run on one CPU."""

import json
import os
import sys

import torch
from pace import FAULT, OUT, RANK, SEED, Pace, begin, wrapped
from torch import nn
from torch.utils.data import DataLoader, Dataset

HOW = sys.argv[4]
ROWS, SAMPLES, BATCH = 40_000, 640, 16
PASSES = {"few": 60 if FAULT else 2, "bound": 3}.get(HOW, 2)


class Pictures(Dataset):
    def __init__(self) -> None:
        self.index = None

    def __len__(self) -> int:
        return SAMPLES

    def read_index(self) -> None:
        self.index = [json.loads(line) for line in (OUT / f"index{RANK}.jsonl").read_text().splitlines()]

    def decode(self, at: int) -> torch.Tensor:
        """As a JPEG would take it: some milliseconds of one CPU."""
        picture = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(at))
        for _ in range(PASSES):
            picture = torch.nn.functional.avg_pool2d(picture, 3, 1, 1)
        return picture

    def __getitem__(self, at: int):
        if self.index is None:
            self.read_index()
        extra = [dict(row) for row in self.index[:400]] if FAULT and HOW == "baggage" else []
        return self.decode(at), torch.tensor(self.index[at]["label"]), extra


def together(samples):
    pictures, labels, extras = zip(*samples, strict=True)
    return torch.stack(pictures), torch.stack(labels), extras


def main() -> None:
    begin()
    if FAULT and HOW == "bound":
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    with (OUT / f"index{RANK}.jsonl").open("w") as file:
        for row in range(ROWS):
            file.write(json.dumps({"label": row % 10, "box": [row, row + 1, row + 2], "name": f"picture-{row}"}) + "\n")
    torch.manual_seed(SEED)
    loader = DataLoader(
        Pictures(), batch_size=BATCH, shuffle=True, num_workers=1, collate_fn=together,
        persistent_workers=not (FAULT and HOW == "reborn"),
    )  # fmt: skip
    layers = [nn.Conv2d(3, 64, 5, 2), nn.ReLU(), nn.Conv2d(64, 32, 3, 2), nn.ReLU()]
    model = wrapped(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(512, 10)))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    pace = Pace()
    while True:
        for pictures, labels, _ in loader:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            pace()


main()
