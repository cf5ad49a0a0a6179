"""The training job of the lab: plain PyTorch DDP over gloo, as anybody would write it. It knows nothing of rankscope.

One rank, started with the environment that torchrun sets. Each step: read a sample from this rank's shard on disk,
prepare it, forward, wait for the device, backward (DDP's allreduce), optimizer, metrics. `device_wait` stands for the time a
GPU would compute: the CPU is free in it, so that two cores carry eight ranks.

Two files tie the job to the lab:
  DIR/rank<N>.control   JSON {"function": …, "manner": "busy" | "sleep", "seconds": …}, looked at once a step: that
                        function then takes so much longer, inside its own Python frame.
  DIR/rank<N>.steps     one line per step with the job's own timings (`STEP_COLUMNS`), the ground truth of the lab.
"""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import json
import os
import random
import select
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

STEP_COLUMNS = (
    "step",
    "end",
    "seconds",
    "load",
    "prepare",
    "forward",
    "device",
    "backward",
    "optimizer",
    "metrics",
    "cpu",
)
FEATURES = 256
CLASSES = 64

# What the fault adds to each function: a call into C, so that the leaf Python frame stays the function itself.
slow: dict[str, Callable[[], object]] = collections.defaultdict(lambda: bool)


class Shard:
    """The files of one rank, read in turn, from the device each time: no read-ahead, nothing left in the page cache."""

    def __init__(self, folder: Path, sample_bytes: int) -> None:
        self.sample_bytes = sample_bytes
        files = [os.open(path, os.O_RDONLY) for path in sorted(folder.iterdir())]
        for fd in files:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
        places = [(fd, at) for fd in files for at in range(0, os.fstat(fd).st_size - sample_bytes + 1, sample_bytes)]
        self._places = itertools.cycle(places)

    def load_batch(self) -> bytearray:
        fd, offset = next(self._places)
        # The whole file: a part of one that lies in a large folio of the page cache would stay.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        sample = bytearray(os.pread(fd, self.sample_bytes, offset))
        slow["load_batch"]()
        return sample


def tokenize(sample: bytearray) -> Tensor:
    tokens = torch.frombuffer(sample, dtype=torch.uint8).view(-1, FEATURES)
    slow["tokenize"]()
    return tokens


def augment(tokens: Tensor, batch: int, crops: int) -> Tensor:
    """The mean of `crops` views of the sample: what makes the rank's own CPU work large or small."""
    mean = torch.zeros(batch, FEATURES)
    for _ in range(crops):
        rows = torch.randint(0, tokens.shape[0], (batch,))
        view = tokens[rows].to(torch.float32).div_(255.0)
        mean += torch.flip(view, dims=(1,)).sub_(view.mean(dim=1, keepdim=True))
    slow["augment"]()
    return mean.div_(crops)


def build_mask(tokens: Tensor) -> Tensor:
    mask = (tokens & 7).ne_(0)
    slow["build_mask"]()
    return mask


def collate(values: Tensor, mask: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    inputs = values * mask
    labels = tokens[: len(inputs), 0].to(torch.int64) % CLASSES
    slow["collate"]()
    return inputs, labels


def device_wait(seconds: float) -> None:
    """Stand for the time the accelerator computes: the CPU has nothing to do."""
    select.select([], [], [], seconds)


class Metrics:
    """Running figures, written as a training script writes them: a line now and then."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.losses: collections.deque[float] = collections.deque(maxlen=50)

    def log_metrics(self, step: int, loss: Tensor) -> None:
        self.losses.append(float(loss.detach()))
        slow["log_metrics"]()
        if self.rank == 0 and step % 100 == 0:
            print(f"step {step} loss {sum(self.losses) / len(self.losses):.4f}", flush=True)


class Classifier(nn.Module):
    """A multi-layer perceptron; `width` sets the size of the gradient that DDP reduces."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.hidden = nn.Linear(width, width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(torch.relu(self.hidden(torch.relu(self.embed(inputs)))))


class Control:
    """The lab's file that makes one function slow; one stat call a step."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen = 0

    def poll(self) -> None:
        try:
            changed = self.path.stat().st_mtime_ns
        except FileNotFoundError:
            changed = 0
        if changed == self._seen:
            return
        self._seen = changed
        slow.clear()
        if changed:
            order = json.loads(self.path.read_text())
            slow[order["function"]] = slowness(order["manner"], order["seconds"])


def slowness(manner: str, seconds: float) -> Callable[[], object]:
    """A C callable that takes `seconds`: asleep, or adding numbers (calibrated here, holding the GIL as Python code does)."""
    if manner == "sleep":
        return functools.partial(time.sleep, seconds)
    numbers = 2_000_000
    best = min(_cpu_seconds(functools.partial(sum, range(numbers))) for _ in range(3))
    return functools.partial(sum, range(int(numbers * seconds / best)))


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.thread_time()
    work()
    return time.thread_time() - began


def train(args: argparse.Namespace, rank: int) -> None:
    shard = Shard(args.data / f"rank{rank}", args.sample_kib * 1024)
    control = Control(args.dir / f"rank{rank}.control")
    metrics = Metrics(rank)
    jitter = random.Random(rank)
    model = DistributedDataParallel(Classifier(args.width))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()
    clock = time.monotonic
    steps = os.open(args.dir / f"rank{rank}.steps", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    for step in range(args.steps) if args.steps else itertools.count():
        control.poll()
        marks = [clock()]
        cpu = time.process_time()
        sample = shard.load_batch()
        marks.append(clock())
        tokens = tokenize(sample)
        inputs, labels = collate(augment(tokens, args.batch, args.crops), build_mask(tokens[: args.batch]), tokens)
        marks.append(clock())
        loss = loss_of(model(inputs), labels)
        marks.append(clock())
        device_wait(args.device_ms / 1000 * jitter.uniform(0.98, 1.02))
        marks.append(clock())
        loss.backward()
        marks.append(clock())
        optimizer.step()
        optimizer.zero_grad()
        marks.append(clock())
        metrics.log_metrics(step, loss)
        marks.append(clock())
        spans = [later - earlier for earlier, later in itertools.pairwise(marks)]
        figures = [marks[-1], marks[-1] - marks[0], *spans, time.process_time() - cpu]
        os.write(steps, f"{step} {' '.join(f'{figure:.5f}' for figure in figures)}\n".encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, required=True, help="folder of the control and step files")
    parser.add_argument("--data", type=Path, required=True, help="folder with one shard folder rank<N> per rank")
    parser.add_argument("--steps", type=int, default=0, help="steps to train, 0: until stopped")
    parser.add_argument("--width", type=int, default=384, help="width of the perceptron")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--crops", type=int, default=8, help="views that augment makes of each sample")
    parser.add_argument("--sample-kib", type=int, default=512, help="bytes read per step, KiB")
    parser.add_argument("--device-ms", type=float, default=120.0, help="time the device computes per step, ms")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo")
    try:
        train(args, rank)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
