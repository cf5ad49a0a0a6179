"""Objects found in pictures: another shape of the lab's job, with the same options and files.

Small stored pictures are pasted into scenes, four scenes become a mosaic, which is cut and letterboxed, and anchors are matched to boxes by
how much they overlap. The backbone is convolutional and has two heads, of which the coarse one is left out where no large box is in
the batch: DDP looks for what was not used. Averaged weights follow the model; every fiftieth step all count which boxes these find.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import logging
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from features import Features, Lengths, places
from job import Control, Recorder, device_wait, features_of, run, slow
from loader import Loader
from stopwatch import Stopwatch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP
from vision import boxes as geometry

THUMB, SCENE, SIDE = 16, 48, 64  # pixels of a stored picture, of a scene, of what the model sees
GREY = 114
PER_SCENE, LARGE_SHARE = 3, 0.03
ROWS_PER_IMAGE = 32
CLASSES, LEAST_BOX = 8, 4
POSITIVE, NEGATIVE = 0.45, 0.3
STRIDES, SIZES = (8, 16), ((10, 16), (26, 40))
RATE, MOMENTUM, DECAY, WARM_UP = 0.01, 0.9, 5e-4, 200
EMA_DECAY, EMA_RAMP = 0.9998, 2000
JUDGED_EVERY, PRINTED_EVERY = 50, 25

ANCHORS = [geometry.anchor_grid(SIDE, stride, sizes) for stride, sizes in zip(STRIDES, SIZES, strict=True)]
ALL_ANCHORS, FINE = np.concatenate(ANCHORS), len(ANCHORS[0])

logger = logging.getLogger(__name__)
Batch = tuple[Tensor, Tensor]


class Picture(NamedTuple):
    pixels: np.ndarray  # height × width × 3
    boxes: np.ndarray
    classes: np.ndarray


class ThumbnailStore:
    """The stored pictures of one rank, read past the page cache."""

    def __init__(self, folder: Path, pack_bytes: int) -> None:
        self._pack_bytes = pack_bytes
        self._places = places(folder, pack_bytes)

    def read_pack(self) -> bytes:
        fd, offset, size = next(self._places)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        pack = os.pread(fd, self._pack_bytes, min(offset, size - self._pack_bytes))
        slow["read_pack"]()
        return pack


def decode_thumbnails(pack: bytes, count: int) -> np.ndarray:
    """Stored are a background, and by how much each pixel differs from it."""
    size = THUMB * THUMB * 3
    stored = np.frombuffer(pack, dtype=np.uint8)[: len(pack) // size * size].reshape(-1, THUMB, THUMB, 3)
    thumbs = stored[:count, :1, :1] // 2 + stored[:count] // 2
    slow["decode_thumbnails"]()
    return thumbs


def enlarged(pixels: np.ndarray, times: int) -> np.ndarray:
    return pixels.repeat(times, axis=0).repeat(times, axis=1)


def class_of(thumb: np.ndarray) -> int:
    """Which of its colours are strong."""
    return int((thumb.mean(axis=(0, 1)) > 127) @ (1, 2, 4))


class Augmentation:
    """Scenes, mosaics and letterboxes; `tries` sets for how many places of an object it is seen how much they hide."""

    def __init__(self, tries: int, seed: int) -> None:
        self._tries = tries
        self._rng = np.random.default_rng(seed)

    def compose_scenes(self, thumbs: np.ndarray) -> list[Picture]:
        scenes = []
        for group in np.split(thumbs, len(thumbs) // (PER_SCENE + 1)):
            backdrop, *objects = group
            canvas = enlarged(backdrop, SCENE // THUMB) // 3 + 60
            placed = np.zeros((0, 4))
            for thumb in objects:
                scale = 2 if self._rng.random() < LARGE_SHARE else 1
                x, y = self._free_place(placed, THUMB * scale)
                canvas[y : y + THUMB * scale, x : x + THUMB * scale] = enlarged(thumb, scale)
                placed = np.vstack((placed, (x, y, x + THUMB * scale, y + THUMB * scale)))
            scenes.append(Picture(canvas, placed, np.array([class_of(thumb) for thumb in objects])))
        slow["compose_scenes"]()
        return scenes

    def _free_place(self, placed: np.ndarray, size: int) -> tuple[int, int]:
        corners = self._rng.integers(0, SCENE - size + 1, (self._tries, 2))
        hidden = geometry.iou(np.hstack((corners, corners + size)), placed).sum(axis=1)
        x, y = corners[hidden.argmin()]
        return int(x), int(y)

    def mosaic(self, scenes: list[Picture]) -> list[Picture]:
        """Four scenes around a centre that is anywhere in the middle half."""
        corners = [(0, 0), (SCENE, 0), (0, SCENE), (SCENE, SCENE)]
        mosaics = []
        for four in zip(*[iter(scenes)] * 4, strict=True):
            canvas = np.full((2 * SCENE, 2 * SCENE, 3), GREY, dtype=np.uint8)
            for (x, y), scene in zip(corners, four, strict=True):
                canvas[y : y + SCENE, x : x + SCENE] = scene.pixels
            moved = [scene.boxes + np.array(corner * 2) for corner, scene in zip(corners, four, strict=True)]
            left, top = (int(at) for at in self._rng.integers(0, SCENE // 2, 2))
            right, bottom = (int(at) for at in self._rng.integers(3 * SCENE // 2, 2 * SCENE + 1, 2))
            shown = geometry.clip(np.vstack(moved), (left, top, right, bottom)) - (left, top, left, top)
            large = geometry.area(shown) >= LEAST_BOX**2
            classes = np.concatenate([scene.classes for scene in four])
            mosaics.append(Picture(canvas[top:bottom, left:right], shown[large], classes[large]))
        slow["mosaic"]()
        return mosaics

    def flip(self, pictures: list[Picture]) -> list[Picture]:
        def flipped(picture: Picture) -> Picture:
            width = picture.pixels.shape[1]
            mirrored = np.array((width, 0, width, 0)) + picture.boxes[:, [2, 1, 0, 3]] * (-1, 1, -1, 1)
            return Picture(picture.pixels[:, ::-1], mirrored, picture.classes)

        found = [flipped(picture) if self._rng.random() < 0.5 else picture for picture in pictures]
        slow["flip"]()
        return found


def letterbox(pictures: list[Picture]) -> list[Picture]:
    """As large as fits into the square, with grey around it."""
    fitted = []
    for pixels, boxes, classes in pictures:
        height, width = pixels.shape[:2]
        ratio = SIDE / max(height, width)
        rows = (np.arange(int(height * ratio)) / ratio).astype(np.int64)
        columns = (np.arange(int(width * ratio)) / ratio).astype(np.int64)
        y, x = (SIDE - len(rows)) // 2, (SIDE - len(columns)) // 2
        canvas = np.full((SIDE, SIDE, 3), GREY, dtype=np.uint8)
        canvas[y : y + len(rows), x : x + len(columns)] = pixels[rows[:, None], columns]
        fitted.append(Picture(canvas, boxes * ratio + (x, y, x, y), classes))
    slow["letterbox"]()
    return fitted


def match_anchors(pictures: list[Picture]) -> list[np.ndarray]:
    """For each anchor: 1 an object, 0 none, -1 in between; then the offsets and the class."""
    matched = []
    for _, boxes, classes in pictures:
        target = np.zeros((len(ALL_ANCHORS), 6), dtype=np.float32)
        if len(boxes):
            overlaps = geometry.iou(ALL_ANCHORS, boxes)
            best, most = overlaps.argmax(axis=1), overlaps.max(axis=1)
            target[:, 0] = np.where(most >= POSITIVE, 1, np.where(most < NEGATIVE, 0, -1))
            target[overlaps.argmax(axis=0), 0] = 1  # every box has an anchor, however bad
            target[:, 1:5] = geometry.encode(boxes[best], ALL_ANCHORS)
            target[:, 5] = classes[best]
        matched.append(target)
    slow["match_anchors"]()
    return matched


def collate_detections(pictures: list[Picture], targets: list[np.ndarray]) -> Batch:
    pixels = np.stack([picture.pixels for picture in pictures]).transpose(0, 3, 1, 2)
    images = torch.from_numpy(np.ascontiguousarray(pixels)).float().div_(255).sub_(0.45)
    slow["collate_detections"]()
    return images, torch.from_numpy(np.stack(targets))


def conv_bn(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.SiLU(inplace=True))


class Detector(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, 16, 3, 2), conv_bn(16, 32, 3, 2), conv_bn(32, 64, 3, 2))
        self.neck = nn.Sequential(conv_bn(64, 64, 3, 2), conv_bn(64, width, 1, 1), conv_bn(width, width, 1, 1))
        self.lateral = conv_bn(width, 64, 1, 1)
        self.fine_head = nn.Conv2d(64, len(SIZES[0]) * (5 + CLASSES), 1)
        self.coarse_head = nn.Sequential(
            conv_bn(width, width // 4, 1, 1), nn.Conv2d(width // 4, len(SIZES[1]) * (5 + CLASSES), 1)
        )

    def forward(self, images: Tensor, with_coarse: bool) -> Tensor:
        """A row for each anchor: object, offsets, classes; those of the coarse anchors only where they are asked for."""
        near = self.stem(images)
        far = self.neck(near)
        levels = [self.fine_head(near + F.interpolate(self.lateral(far), scale_factor=2.0))]
        if with_coarse:
            levels.append(self.coarse_head(far))
        flat = [level.permute(0, 2, 3, 1).reshape(len(images), -1, 5 + CLASSES) for level in levels]
        return torch.cat(flat, dim=1)


class Timed(nn.Module):
    """The detector inside DDP, which has averages of its own to send before the forward pass."""

    def __init__(self, detector: Detector, watch: Stopwatch) -> None:
        super().__init__()
        self.detector, self._watch = detector, watch

    def forward(self, images: Tensor, with_coarse: bool) -> Tensor:
        with self._watch.part("forward"):
            return self.detector(images, with_coarse)


def detection_loss(found: Tensor, targets: Tensor) -> Tensor:
    targets = targets[:, : found.shape[1]]
    states = targets[..., 0]
    known, positive = states >= 0, states > 0
    objects = F.binary_cross_entropy_with_logits(found[..., 0][known], states[known])
    if not positive.any():
        return objects + 0 * found.sum()
    offsets = F.smooth_l1_loss(found[..., 1:5][positive], targets[..., 1:5][positive])
    return objects + offsets + 0.5 * F.cross_entropy(found[..., 5:][positive], targets[..., 5][positive].long())


class ModelEma:
    """Averaged weights; the statistics of the normalisation are taken as they are."""

    def __init__(self, model: nn.Module) -> None:
        self.module = copy.deepcopy(model).eval().requires_grad_(False)
        self._updates = 0

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self._updates += 1
        kept = EMA_DECAY * (1 - 0.5 ** (self._updates / EMA_RAMP))
        for averaged, new in zip(self.module.parameters(), model.parameters(), strict=True):
            averaged.mul_(kept).add_(new, alpha=1 - kept)
        for averaged, new in zip(self.module.buffers(), model.buffers(), strict=True):
            averaged.copy_(new)


class Meter:
    """A moving mean, under a lock that an uploading thread shares."""

    def __init__(self, lock: threading.Lock) -> None:
        self._lock = lock
        self.mean = 0.0

    def update_meter(self, value: float, step: int) -> None:
        with self._lock:
            self.mean += (value - self.mean) / min(step + 1, PRINTED_EVERY)
        slow["update_meter"]()


class Pipeline:
    """From stored pictures to batches, in this process or in workers."""

    def __init__(self, args: argparse.Namespace, rank: int) -> None:
        self._images, self._dice = args.batch / ROWS_PER_IMAGE, random.Random(rank)
        self._store = ThumbnailStore(args.data / f"rank{rank}", args.sample_kib * 1024)
        self._augmentation = Augmentation(args.crops, rank)
        self._its_control = Control(args.dir / f"rank{rank}.control")
        self._has_workers = args.workers > 0
        self.loader = Loader(self._in_worker, args.workers)
        self.loader.follow({})

    def _in_worker(self, number: int) -> Batch:
        self._its_control.poll(number)
        return self._batch_of(self._store.read_pack(), 1.0)

    def _batch_of(self, pack: bytes, length: float) -> Batch:
        images = max(1, int(self._images * length + self._dice.random()))  # right on the average
        pictures = self._augmentation.compose_scenes(decode_thumbnails(pack, images * 4 * (PER_SCENE + 1)))
        stages: tuple[Callable[[list[Picture]], list[Picture]], ...]
        stages = (self._augmentation.mosaic, self._augmentation.flip, letterbox)
        for stage in stages:
            pictures = stage(pictures)
        return collate_detections(pictures, match_anchors(pictures))

    def next_batch(self, length: float, features: Features, watch: Stopwatch) -> Batch:
        with watch.part("load"):
            found = self.loader.next_batch() if self._has_workers else self._store.read_pack()
        with watch.part("prepare"):
            batch = found if self._has_workers else self._batch_of(found, length)
            features.before_forward()
        return batch


class Run:
    """What is trained; made anew where the model grows."""

    def __init__(self, width: int, device_s: float, watch: Stopwatch) -> None:
        self.device_s, self.watch = device_s, watch
        self.detector = Detector(width)
        self.ema = ModelEma(self.detector)
        self.model = DDP(Timed(self.detector, watch), find_unused_parameters=True)
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=RATE, momentum=MOMENTUM, weight_decay=DECAY, nesterov=True
        )
        self.schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=WARM_UP)

    def step(self, batch: Batch, longer: float) -> float:
        images, targets = batch
        with self.watch.part("backward"):
            found = self.model(images, bool((targets[:, FINE:, 0] > 0).any()))
        with self.watch.part("forward"):
            loss = detection_loss(found, targets)
        with self.watch.part("device"):
            device_wait(self.device_s * longer)
        with self.watch.part("backward"):
            loss.backward()
        with self.watch.part("optimizer"):
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.ema.update(self.detector)
        return loss.item()

    @torch.no_grad()
    def recall(self, held_out: Batch) -> float:
        """The share of anchors with an object, over all ranks, at which the averaged weights see one."""
        images, targets = held_out
        with self.watch.part("forward"):
            seen, there = self.ema.module(images, True)[..., 0] > 0, targets[..., 0] > 0
            counts = torch.tensor([int((seen & there).sum()), int(there.sum())])
        with self.watch.part("device"):
            device_wait(self.device_s / 3)
        with self.watch.part("backward"):
            dist.all_reduce(counts)
        return float(counts[0] / counts[1].clamp(min=1))


def train(args: argparse.Namespace, rank: int, world: int) -> None:
    logging.basicConfig(level=logging.INFO if rank == 0 else logging.ERROR, format="%(levelname).1s %(message)s")
    watch, control = Stopwatch(Recorder(args.dir / f"rank{rank}.steps")), Control(args.dir / f"rank{rank}.control")
    features, lengths, pipeline = features_of(args, rank), Lengths(rank, world), Pipeline(args, rank)
    meter, jitter = Meter(features.metrics_thread.lock), random.Random(rank)
    current, held_out = Run(args.width, args.device_ms / 1000, watch), None
    for step in range(args.steps) if args.steps else itertools.count():
        watch.begin()
        if control.poll(step):
            for part in (features, lengths, pipeline.loader):
                part.follow(control.orders)
        if step == control.orders.get("at"):
            current = Run(control.orders["width"], args.device_ms / 1000 * control.orders["device"], watch)
        length = lengths.of_step(step)
        batch = pipeline.next_batch(length, features, watch)
        held_out = held_out or batch
        meter.update_meter(current.step(batch, length * jitter.uniform(0.98, 1.02)), step)
        if step % PRINTED_EVERY == 0:
            logger.info("step=%d loss=%.4f lr=%.4f", step, meter.mean, current.schedule.get_last_lr()[0])
        if step % JUDGED_EVERY == JUDGED_EVERY - 1:
            logger.info("step=%d ema recall=%.3f", step, current.recall(held_out))
        features.after_step(step)
        watch.end(step)


if __name__ == "__main__":
    run(train)
