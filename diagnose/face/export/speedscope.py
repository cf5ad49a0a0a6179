"""speedscope (https://www.speedscope.app/file-format-schema.json): a profile per rank."""

from __future__ import annotations

import json
from typing import Any

from rankscope.diagnose.face.export.stacks import rank_name, samples_of
from rankscope.diagnose.infer.fleet.model import Fleet
from rankscope.diagnose.text import clean
from rankscope.observer.window.stacks import StackFrame

_SCHEMA = "https://www.speedscope.app/file-format-schema.json"


def speedscope(fleet: Fleet) -> bytes:
    """Export stacks as JSON; weights are seconds."""
    frames: dict[StackFrame, int] = {}
    profiles: dict[int, dict[str, Any]] = {}
    for sample in samples_of(fleet):
        profile = profiles.setdefault(sample.rank, _profile(rank_name(sample)))
        profile["samples"].append([frames.setdefault(frame, len(frames)) for frame in sample.frames])
        profile["weights"].append(round(sample.seconds, 9))
    for profile in profiles.values():
        profile["endValue"] = round(sum(profile["weights"]), 9)
    content = {
        "$schema": _SCHEMA,
        "name": clean(fleet.title or fleet.job),
        "exporter": "rankscope",
        "activeProfileIndex": 0,
        "shared": {"frames": [_frame(frame) for frame in frames]},
        "profiles": list(profiles.values()),
    }
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("utf-8")


def _profile(name: str) -> dict[str, Any]:
    """Make the empty profile of a rank."""
    return {
        "type": "sampled",
        "name": name,
        "unit": "seconds",
        "startValue": 0,
        "endValue": 0.0,
        "samples": [],
        "weights": [],
    }


def _frame(frame: StackFrame) -> dict[str, Any]:
    """Make a frame of the shared table: its name, with file and line if there is a file."""
    return {"name": frame.name, **({"file": frame.file, "line": frame.line} if frame.file else {})}
