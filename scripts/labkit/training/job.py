"""The training job of the lab: plain PyTorch DDP over gloo, as anybody would write it. It knows nothing of rankscope.

One rank, started with the environment that torchrun sets. Each step: read a sample from this rank's shard on disk,
prepare it, forward, wait for the device, backward (DDP's allreduce), optimizer, metrics. `device_wait` stands for the time a
GPU would compute: the CPU is free in it, so that two cores carry eight ranks.

Two files tie the job to the lab:
  DIR/rank<N>.control   JSON of orders, looked at once a step. {"function": …, "manner": "busy" | "sleep", "seconds": …}:
                        that function then takes so much longer, inside its own Python frame; with "every": n only in every
                        n-th step. {"width": …, "device": …, "at": step}: a model of that width, which computes so many times
                        as long on the device, from that step on. Others: features.py, loader.py, pipeline.py, stuck.py.
  DIR/rank<N>.steps     one line per step with the job's own timings (`STEP_COLUMNS`), the ground truth of the lab.
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import random
import select
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pipeline
import torch
import torch.distributed as dist
from control import Control, slow
from features import Checkpoints, Features, Lengths, Table, places
from loader import Loader
from stuck import Stuck
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


class Shard:
    """The files of one rank, read in turn, from the device each time: no read-ahead, nothing left in the page cache."""

    def __init__(self, folder: Path, sample_bytes: int) -> None:
        self.sample_bytes = sample_bytes
        self._places = places(folder, sample_bytes)

    def load_batch(self, length: float = 1.0) -> bytearray:
        fd, offset, size = next(self._places)
        # The whole file: a part of one that lies in a large folio of the page cache would stay.
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        wanted = int(self.sample_bytes * length) // FEATURES * FEATURES
        sample = bytearray(os.pread(fd, wanted, min(offset, size - wanted)))
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

    def __init__(self, rank: int, lock: threading.Lock) -> None:
        self.rank = rank
        self.lock = lock
        self.losses: collections.deque[float] = collections.deque(maxlen=50)

    def log_metrics(self, step: int, loss: Tensor) -> None:
        figure = float(loss.detach())
        with self.lock:
            self.losses.append(figure)
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


class Recorder:
    """Writes a line of timings for each step."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)

    def write(self, step: int, marks: list[float], cpu: float) -> None:
        """`marks`: the beginning of the step, and the end of each of its parts, on CLOCK_MONOTONIC."""
        spans = [later - earlier for earlier, later in itertools.pairwise(marks)]
        figures = [marks[-1], marks[-1] - marks[0], *spans, cpu]
        os.write(self._fd, f"{step} {' '.join(f'{figure:.5f}' for figure in figures)}\n".encode())


def train_in_parallel(args: argparse.Namespace, rank: int, world: int) -> None:
    shard = Shard(args.data / f"rank{rank}", args.sample_kib * 1024)
    control = Control(args.dir / f"rank{rank}.control")
    features = features_of(args, rank)
    lengths = Lengths(rank, world)
    stuck = Stuck(args.dir / f"rank{rank}", args.report_values)
    metrics = Metrics(rank, features.metrics_thread.lock)
    jitter = random.Random(rank)
    model, optimizer, device_s = *build(args.width), args.device_ms / 1000
    loss_of = nn.CrossEntropyLoss()
    clock = time.monotonic
    recorder = Recorder(args.dir / f"rank{rank}.steps")
    worker_control = Control(control.path)  # each worker process goes on with a copy of its own

    def make_batch(number: int) -> tuple[Tensor, Tensor]:
        worker_control.poll(number)
        return prepare(shard.load_batch(), args, 1.0)

    loader = Loader(make_batch, args.workers)
    loader.follow({})
    for step in range(args.steps) if args.steps else itertools.count():
        if control.poll(step):
            for part in (features, lengths, loader):
                part.follow(control.orders)
            stuck.follow(control.orders.get("stuck"))
        if step == control.orders.get("at"):
            model, optimizer = build(control.orders["width"])
            device_s = args.device_ms / 1000 * control.orders["device"]
        length = lengths.of_step(step)
        marks = [clock()]
        cpu = time.process_time()
        if args.workers:
            inputs, labels = loader.next_batch()
            marks.append(clock())
        else:
            sample = shard.load_batch(length)
            marks.append(clock())
            inputs, labels = prepare(sample, args, length)
        features.before_forward()
        marks.append(clock())
        loss = loss_of(model(inputs), labels)
        marks.append(clock())
        device_wait(device_s * length * jitter.uniform(0.98, 1.02))
        marks.append(clock())
        loss.backward()
        marks.append(clock())
        optimizer.step()
        optimizer.zero_grad()
        marks.append(clock())
        metrics.log_metrics(step, loss)
        features.after_step(step)
        marks.append(clock())
        recorder.write(step, marks, time.process_time() - cpu)
        stuck.after_step(step)


def prepare(sample: bytearray, args: argparse.Namespace, length: float) -> tuple[Tensor, Tensor]:
    """From the bytes of a sample to a batch; `length` times as many rows."""
    batch = int(args.batch * length)
    tokens = tokenize(sample)
    return collate(augment(tokens, batch, args.crops), build_mask(tokens[:batch]), tokens)


def build(width: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = DistributedDataParallel(Classifier(width))
    return model, torch.optim.SGD(model.parameters(), lr=0.01)


def features_of(args: argparse.Namespace, rank: int) -> Features:
    table = args.data / f"table{rank}" if args.lookups else None
    return Features(
        Table(table, args.lookups, rank),
        Checkpoints(args.data / f"checkpoint{rank}", args.save_every, args.save_kib),
        args.report_bytes,
    )


def run(train: Callable[[argparse.Namespace, int, int], None]) -> None:
    """Train with the options of the command line, as one rank of those that the environment tells."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, required=True, help="folder of the control and step files")
    parser.add_argument("--data", type=Path, required=True, help="folder with one shard folder rank<N> per rank")
    parser.add_argument("--steps", type=int, default=0, help="steps to train, 0: until stopped")
    parser.add_argument("--width", type=int, default=384, help="width of the perceptron")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--crops", type=int, default=8, help="views that augment makes of each sample")
    parser.add_argument("--sample-kib", type=int, default=512, help="bytes read per step, KiB")
    parser.add_argument("--device-ms", type=float, default=120.0, help="time the device computes per step, ms")
    parser.add_argument("--workers", type=int, default=0, help="processes that make batches, 0: the rank makes its own")
    parser.add_argument("--report-bytes", type=int, default=0, help="bytes of report printed after each step")
    parser.add_argument("--report-values", type=int, default=0, help="figures that all ranks add up after each step")
    parser.add_argument("--lookups", type=int, default=0, help="pages of DATA/table<N> that each step looks up")
    parser.add_argument("--save-every", type=int, default=0, help="steps from checkpoint to checkpoint")
    parser.add_argument("--save-kib", type=int, default=1024, help="a rank's part of a checkpoint, KiB")
    parser.add_argument("--stages", type=int, default=1, help="stages of the pipeline; 2 or more: see pipeline.py")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(7)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    try:
        if args.stages > 1 and train is train_in_parallel:
            shard = Shard(args.data / f"rank{rank}", args.sample_kib * 1024)
            control = Control(args.dir / f"rank{rank}.control")
            recorder = Recorder(args.dir / f"rank{rank}.steps")

            def load() -> tuple[Tensor, Tensor]:
                return prepare(shard.load_batch(), args, 1.0)

            pipeline.train(pipeline.Place(rank, world, args.stages), args, load, control, recorder)
        else:
            train(args, rank, world)
    finally:
        dist.destroy_process_group()


if __name__ == "__main__":
    run(train_in_parallel)
