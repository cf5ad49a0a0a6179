"""Arithmetic of boxes for detection: x1, y1, x2, y2 in pixels, one a row."""

from __future__ import annotations

import numpy as np


def area(boxes: np.ndarray) -> np.ndarray:
    return np.prod(np.maximum(boxes[..., 2:] - boxes[..., :2], 0), axis=-1)


def iou(some: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Intersection over union of each with each."""
    corner = np.maximum(some[:, None, :2], others[None, :, :2])
    opposite = np.minimum(some[:, None, 2:], others[None, :, 2:])
    common = np.prod(np.maximum(opposite - corner, 0), axis=-1)
    return common / np.maximum(area(some)[:, None] + area(others)[None] - common, 1e-6)


def clip(boxes: np.ndarray, frame: tuple[int, int, int, int]) -> np.ndarray:
    low, high = frame[:2] * 2, frame[2:] * 2
    return np.clip(boxes, low, high)


def encode(boxes: np.ndarray, anchors: np.ndarray) -> np.ndarray:
    """Where a box lies, as seen from its anchor: shift of the centre and logarithm of the size."""
    size, usual = boxes[:, 2:] - boxes[:, :2], anchors[:, 2:] - anchors[:, :2]
    shift = (boxes[:, :2] + boxes[:, 2:] - anchors[:, :2] - anchors[:, 2:]) / (2 * usual)
    return np.concatenate((shift, np.log(np.maximum(size, 1) / usual)), axis=1).astype(np.float32)


def anchor_grid(side: int, stride: int, sizes: tuple[int, ...]) -> np.ndarray:
    """Squares of these sizes around the centre of each cell."""
    centres = np.arange(stride / 2, side, stride)
    rows, columns = np.meshgrid(centres, centres, indexing="ij")
    middle = np.stack((columns, rows), axis=-1).reshape(-1, 1, 2)
    half = np.asarray(sizes, dtype=np.float64).reshape(1, -1, 1) / 2
    return np.concatenate((middle - half, middle + half), axis=-1).reshape(-1, 4).astype(np.float32)
