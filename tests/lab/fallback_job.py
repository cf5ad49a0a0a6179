"""All ranks unpack frames; rank 1 lacks the fast way and takes another one, for which the others wait."""

import zlib

import numpy as np
import torch
import torch.distributed as dist
from torch import nn


def fast_unpack(raw: bytes) -> np.ndarray:
    out = np.frombuffer(zlib.decompress(raw), dtype=np.uint8).astype(np.float32)
    for _ in range(6):
        out = out * 0.999 + 0.1
    return out


def portable_unpack(raw: bytes) -> np.ndarray:
    total = 0
    for value in zlib.decompress(raw)[:200_000]:
        total = (total * 31 + value) & 0xFFFF
    return np.full(65536, total, dtype=np.float32)


def main() -> None:
    dist.init_process_group("gloo")
    unpack = portable_unpack if dist.get_rank() == 1 else fast_unpack
    raw = zlib.compress(np.random.default_rng(1).integers(0, 9, 1 << 18, dtype=np.uint8).tobytes(), 1)
    layers = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256))
    model = nn.parallel.DistributedDataParallel(layers)
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    while True:
        batch = torch.from_numpy(np.resize(unpack(raw), 64 * 256)).view(64, 256)
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main()
