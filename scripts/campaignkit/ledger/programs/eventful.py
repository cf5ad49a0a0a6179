"""A DDP script whose pauses come at given times: `torchrun eventful.py FOLDER`.

FOLDER/schedule.json holds begins of pauses by kind (Unix seconds), the length of the hang, and when the job ends:

gc          a full collection, on each rank in turn
checkpoint  rank 0 writes one for some seconds
loader      the storage of every rank's loader answers late
hang        rank 1 does not come back from `search`

Each rank writes what it did into FOLDER/told-RANK, a line of JSON for its start and for each pause; rank 0 the end and number of each
step into FOLDER/steps. Started again, the job goes on behind its checkpoint.
"""

import gc
import json
import os
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

OBJECTS = 5_000_000
LATE_S = 3.0
PIECES, PIECE = 16, 3 << 20  # of a checkpoint
STEP_S = 0.1


class Due:
    """Hands out the pauses of one kind as their time comes; those that were before this process are gone."""

    def __init__(self, times: list[float]) -> None:
        self._left = [one for one in enumerate(times) if one[1] > time.time()]

    def take(self) -> int:
        """Number of the pause that is due; -1 for none."""
        return self._left.pop(0)[0] if self._left and time.time() >= self._left[0][1] else -1


class Storage(Dataset[torch.Tensor]):
    """Rows that are made as they are asked for."""

    def __init__(self, late: list[float]) -> None:
        self._late = Due(late)

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> torch.Tensor:
        if self._late.take() >= 0:
            time.sleep(LATE_S)
        return torch.full((64,), float(index % 7))


class Told:
    """What this rank did."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._file = (folder / f"told-{rank}").open("a", encoding="utf-8")

    def tell(self, kind: str, at: float, **more: Any) -> None:
        self._file.write(json.dumps({"kind": kind, "at": at, **more}) + "\n")
        self._file.flush()

    @contextmanager
    def timed(self, kind: str, step: int) -> Iterator[None]:
        begin = time.time()
        yield
        self.tell(kind, begin, seconds=time.time() - begin, step=step)


def save_checkpoint(path: Path, model: nn.Module, step: int) -> None:
    state = {"step": step, "model": model.state_dict()}
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        for _ in range(PIECES):  # of the optimizer's state
            file.write(os.urandom(PIECE))
            file.flush()
            os.fsync(file.fileno())
            time.sleep(0.3)
    torch.save(state, path.with_suffix(".model"))
    partial.replace(path)


def search(seconds: float) -> None:
    until = time.time() + seconds
    while time.time() < until:
        pass


def batches(storage: Storage) -> Iterator[torch.Tensor]:
    yield from DataLoader(storage, batch_size=32, num_workers=1)


def started_at() -> float:
    """When this process began, Unix seconds."""
    ticks = int(Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19])
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return boot + ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    folder = Path(sys.argv[1])
    schedule = json.loads((folder / "schedule.json").read_text(encoding="utf-8"))
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    told, checkpoint, step = Told(folder, rank), folder / "checkpoint.bin", 0
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64)))
    optimizer = torch.optim.Adam(model.parameters())
    if checkpoint.exists():
        state = torch.load(checkpoint.with_suffix(".model"))
        model.load_state_dict(state["model"])
        step = state["step"]
    told.tell("start", started_at(), pid=os.getpid(), step=step)
    objects = [[number] for number in range(OBJECTS)]
    gc.disable()  # collections are those of the schedule
    due = {kind: Due(times) for kind, times in schedule["pauses"].items()}
    rows = batches(Storage(schedule["pauses"]["loader"]))
    steps = (folder / "steps").open("ab") if rank == 0 else None
    going = torch.ones(1)
    while going.item():
        step += 1
        number = due["gc"].take()
        if number >= 0 and number % world == rank:
            with told.timed("gc", step):
                gc.collect()
        if due["checkpoint"].take() >= 0 and rank == 0:
            with told.timed("checkpoint", step):
                save_checkpoint(checkpoint, model, step - 1)
        if due["hang"].take() >= 0 and rank == 1:
            with told.timed("hang", step):
                search(schedule["hang_s"])
        begin = time.time()
        batch = next(rows)
        if (waited := time.time() - begin) > LATE_S / 6:
            told.tell("loader", begin, seconds=waited, step=step)
        time.sleep(STEP_S)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if steps is not None:
            steps.write(struct.pack("<dd", time.time(), step))
            steps.flush()
        going.fill_(time.time() < schedule["until"])
        if step % 8 == 0:
            dist.all_reduce(going, dist.ReduceOp.MIN)
        else:
            going.fill_(1.0)
    assert len(objects) == OBJECTS
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
