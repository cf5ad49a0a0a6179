"""The training job of the GPU lab: data parallel, as DDP runs it on CUDA and NCCL. It knows nothing of rankscope.

One rank, started with the environment that torchrun sets. Each step: read a batch, prepare it, copy it to the GPU, forward,
backward with bucketed all-reduces on a second stream while it runs, optimizer, and loss.item(), which waits for all of it.
Kernels are handed over asynchronously: Python runs ahead of the GPU and waits for it once a step (`--sync-every`: once in n).
torch's place is taken by cuda.py (its CPU build knows no CUDA); what a kernel does is nothing, and takes its time.

Two files tie the job to the lab:
  DIR/rank<N>.control   makes one Python function slow (training/control.py)
  DIR/rank<N>.steps     one line per step with the job's own timings (STEP_COLUMNS), the ground truth of the lab: seconds by
                        the host's clock, and copy, compute, exchange by CUDA events on the compute stream
"""

from __future__ import annotations

import argparse
import collections
import itertools
import os
import random
import time
import zlib
from pathlib import Path

import cuda
from control import Control, slow
from store import Rendezvous

STEP_COLUMNS = (
    "step",
    "end",
    "seconds",
    "load",
    "prepare",
    "forward",
    "backward",
    "optimizer",
    "metrics",
    "wait",
    "cpu",
    "copy",
    "compute",
    "exchange",
)
FLOAT32_BYTES = 4
# Forward takes one part of a layer's time, backward two.
FORWARD_SHARE = 1 / 3
# Kernels of one size differ by so much from step to step.
JITTER = 0.01
# Of the gradients: the embedding, whose gradient is complete last, so that nothing hides its exchange.
EMBEDDING_SHARE = 0.4


class Timer:
    """CUDA events around the parts of a step on the compute stream."""

    def __init__(self) -> None:
        self.begin, self.copied, self.computed, self.exchanged = (cuda.Event() for _ in range(4))

    def figures(self) -> tuple[float, float, float]:
        """Seconds of copy, compute and exposed exchange; valid once the step's work is done."""
        return (
            self.copied.seconds_since(self.begin),
            self.computed.seconds_since(self.copied),
            self.exchanged.seconds_since(self.computed),
        )


class Model:
    """Layers of two kernels, gradients in buckets of a few layers, and an embedding."""

    def __init__(self, args: argparse.Namespace, communicator: cuda.Communicator, seed: int) -> None:
        self._layers, self._per_bucket = args.layers, args.layers // args.buckets
        self._compute_s, self._check_every = args.compute_ms / 1e3, args.check_every
        self._host_s = args.layer_host_ms / 1e3
        self._communicator = communicator
        self._random = random.Random(seed)
        count = int(args.gradient_mb * 1e6) // FLOAT32_BYTES
        self._embedding = int(count * EMBEDDING_SHARE)
        self._bucket = (count - self._embedding) // args.buckets
        self._gradients = cuda.device_memory(count * FLOAT32_BYTES)
        self._attention, self._mlp, self._adam = (cuda.Kernel(name) for name in ("attention", "mlp", "adam"))
        self.compute, self.communication = cuda.Stream(), cuda.Stream()
        self._ready, self._reduced = cuda.Event(), cuda.Event()

    def forward(self) -> None:
        slow["forward"]()
        for layer in range(1, self._layers + 1):
            self._run_layer(FORWARD_SHARE)
            if self._check_every and layer % self._check_every == 0:
                self.check_values()

    def check_values(self) -> None:
        """As `assert not x.isnan().any()` does: the value is on the GPU, and Python waits for it."""
        self.compute.synchronize()

    def backward(self) -> None:
        """As DDP: a bucket is reduced on the other stream as soon as its layers' gradients are there."""
        slow["backward"]()
        for layer in range(1, self._layers + 1):
            self._run_layer(1 - FORWARD_SHARE)
            if layer % self._per_bucket == 0:
                self._reduce_bucket(self._bucket)
        self._reduce_bucket(self._embedding)

    def optimizer_step(self, timer: Timer) -> None:
        self.compute.record(timer.computed)
        self.communication.record(self._reduced)
        self.compute.wait_for(self._reduced)
        self.compute.record(timer.exchanged)
        slow["optimizer_step"]()
        for _ in range(4):
            self._adam.launch(self._compute_s * 0.012, self.compute)

    def _run_layer(self, share: float) -> None:
        """Launch the two kernels of a layer, after what Python does for it: as modules, hooks and autograd do."""
        if self._host_s:
            end = time.monotonic() + self._host_s
            while time.monotonic() < end:
                pass
        seconds = self._compute_s / self._layers * share * self._random.uniform(1 - JITTER, 1 + JITTER)
        self._attention.launch(seconds * 0.4, self.compute)
        self._mlp.launch(seconds * 0.6, self.compute)

    def _reduce_bucket(self, count: int) -> None:
        self.compute.record(self._ready)
        self.communication.wait_for(self._ready)
        self._communicator.all_reduce(self._gradients, count, self.communication)


class Batches:
    """Compressed samples on disk, read in turn, and a pinned buffer for what becomes of them."""

    def __init__(self, folder: Path, batch_bytes: int) -> None:
        self._files = itertools.cycle(sorted(folder.glob("sample-*.z")))
        self._batch_bytes = batch_bytes
        self._pinned = cuda.pinned_memory(batch_bytes)
        self._on_device = cuda.device_memory(batch_bytes)

    def load_batch(self) -> bytes:
        data = next(self._files).read_bytes()
        slow["load_batch"]()
        return data

    def prepare(self, data: bytes) -> int:
        """The size of the sample; its bytes stand for a batch that is made of it."""
        sample = zlib.decompress(data)
        slow["prepare"]()
        return len(sample)

    def copy_to_device(self, stream: cuda.Stream) -> None:
        stream.copy(self._on_device, self._pinned, self._batch_bytes, cuda.HOST_TO_DEVICE)


class Metrics:
    """loss.item(), and a line now and then."""

    def __init__(self, rank: int, stream: cuda.Stream) -> None:
        self._rank, self._stream = rank, stream
        self._loss_on_device, self._loss = cuda.device_memory(4), cuda.pinned_memory(4)
        self._losses: collections.deque[float] = collections.deque(maxlen=50)

    def item(self) -> float:
        self._stream.copy(self._loss, self._loss_on_device, 4, cuda.DEVICE_TO_HOST)
        self._stream.synchronize()
        return 1.0

    def log_metrics(self, step: int, loss: float) -> None:
        self._losses.append(loss)
        slow["log_metrics"]()
        if self._rank == 0 and step % 100 == 0:
            print(f"step {step} loss {sum(self._losses) / len(self._losses):.4f}", flush=True)


class StepFile:
    """Lines of finished steps; a step's line waits until the GPU has done its work."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
        self._pending: list[tuple[int, list[float], Timer]] = []

    def add(self, step: int, figures: list[float], timer: Timer) -> None:
        self._pending.append((step, figures, timer))

    def write(self) -> None:
        for step, figures, timer in self._pending:
            shown = " ".join(f"{figure:.5f}" for figure in [*figures, *timer.figures()])
            os.write(self._handle, f"{step} {shown}\n".encode())
        self._pending.clear()


def train(args: argparse.Namespace, rank: int, communicator: cuda.Communicator) -> None:
    control = Control(args.dir / f"rank{rank}.control")
    steps = StepFile(args.dir / f"rank{rank}.steps")
    batches = Batches(args.data, int(args.batch_mb * 1e6))
    model = Model(args, communicator, rank)
    metrics = Metrics(rank, model.compute)
    timers = itertools.cycle([Timer() for _ in range(args.sync_every)])
    clock = time.monotonic
    for step in range(args.steps) if args.steps else itertools.count():
        control.poll()
        timer = next(timers)
        marks, cpu = [clock()], time.process_time()
        data = batches.load_batch()
        marks.append(clock())
        batches.prepare(data)
        marks.append(clock())
        model.compute.record(timer.begin)
        batches.copy_to_device(model.compute)
        model.compute.record(timer.copied)
        model.forward()
        marks.append(clock())
        model.backward()
        marks.append(clock())
        model.optimizer_step(timer)
        marks.append(clock())
        synchronous = (step + 1) % args.sync_every == 0
        loss = metrics.item() if synchronous else 1.0
        marks.append(clock())
        metrics.log_metrics(step, loss)
        marks.append(clock())
        load, prepare, forward, backward, optimizer, wait, log = (b - a for a, b in itertools.pairwise(marks))
        figures = [marks[-1], marks[-1] - marks[0], load, prepare, forward, backward, optimizer, log, wait]
        steps.add(step, [*figures, time.process_time() - cpu], timer)
        if synchronous:
            steps.write()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dir", type=Path, required=True, help="folder of the control and step files")
    parser.add_argument("--data", type=Path, required=True, help="folder of the samples")
    parser.add_argument("--steps", type=int, default=0, help="steps to train, 0: until stopped")
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--buckets", type=int, default=4, help="buckets that the layers' gradients are reduced in")
    parser.add_argument("--compute-ms", type=float, default=390.0, help="GPU time of forward and backward per step, ms")
    parser.add_argument("--gradient-mb", type=float, default=18000.0, help="bytes that are reduced per step, MB")
    parser.add_argument("--batch-mb", type=float, default=2700.0, help="bytes copied to the GPU per step, MB")
    parser.add_argument(
        "--check-every", type=int, default=0, help="wait for the GPU behind every so many layers, 0: never"
    )
    parser.add_argument("--layer-host-ms", type=float, default=0.0, help="time of the host for each layer, ms")
    parser.add_argument("--sync-every", type=int, default=1, help="wait for the GPU once in so many steps")
    args = parser.parse_args()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    # The device plugin of a pod, or the lab, leaves one GPU visible.
    cuda.use_device(0 if "CUDA_VISIBLE_DEVICES" in os.environ else int(os.environ["LOCAL_RANK"]))
    rendezvous = Rendezvous(rank, world)
    unique_id = rendezvous.share(cuda.unique_id() if rank == 0 else b"", cuda.UNIQUE_ID_BYTES)
    communicator = cuda.Communicator(rank, world, unique_id)
    train(args, rank, communicator)
    communicator.destroy()


if __name__ == "__main__":
    main()
