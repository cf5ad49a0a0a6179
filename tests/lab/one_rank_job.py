"""An ordinary training script of one process, `python one_rank_job.py SECONDS`, that loads in the training process."""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Sums(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), float(sum(range(3000)) % 7))


def main() -> None:
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 64))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    end = time.time() + float(sys.argv[1])
    for batch in DataLoader(Sums(), batch_size=64):
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if time.time() > end:
            return


if __name__ == "__main__":
    main()
