"""Shards of WebDataset, read by WebLoader with two workers, decoded and batched in the pipeline; torchrun."""

from __future__ import annotations

import argparse
import io
from pathlib import Path

import knobs
import numpy as np
import torch
import torch.distributed as dist
import webdataset as wds
from torch import nn
from torch.nn.parallel import DistributedDataParallel

SIDE, BATCH = 24, 24


def write_shards(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with wds.ShardWriter(str(folder / "shard-%04d.tar"), maxcount=64, verbose=0) as shards:
        for number in range(8 * 64):
            data = io.BytesIO()
            np.save(data, np.random.default_rng(number).random((3, SIDE, SIDE), dtype=np.float32))
            shards.write({"__key__": f"{number:06d}", "npy": data.getvalue(), "cls": str(number % 10).encode()})


def decode_picture(data: bytes) -> torch.Tensor:
    picture = torch.from_numpy(np.load(io.BytesIO(data)))
    knobs.slow["decode_picture"]()
    return picture


def erase(picture: torch.Tensor) -> torch.Tensor:
    at = int(torch.randint(SIDE - 6, ()))
    picture[:, at : at + 6, at : at + 6] = 0
    knobs.slow["erase"]()
    return picture


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    if rank == 0:
        write_shards(args.out / "shards")
    dist.barrier()
    knobs.follow(args.out, rank)
    pictures = (
        wds.WebDataset(str(args.out / "shards" / "shard-{0000..0007}.tar"), resampled=True, shardshuffle=False)
        .shuffle(100)
        .to_tuple("npy", "cls")
        .map_tuple(decode_picture, int)
        .batched(BATCH, partial=False)
    )
    loader = wds.WebLoader(pictures, batch_size=None, num_workers=2).with_epoch(1_000_000)
    net = nn.Sequential(
        nn.Conv2d(3, 24, 3), nn.ReLU(), nn.Conv2d(24, 24, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(24 * 100, 10)
    )  # fmt: skip
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    knobs.begin(args.out, rank)
    for step, (batch, labels) in enumerate(loader, 1):
        inputs = torch.stack([erase(picture) for picture in torch.as_tensor(batch)])
        loss = nn.functional.cross_entropy(model(inputs), torch.as_tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        knobs.step(step)


if __name__ == "__main__":
    main()
