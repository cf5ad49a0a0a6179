"""Export formats by the names that the command accepts."""

from __future__ import annotations

from collections.abc import Callable

from rankscope.diagnose.face.export.folded import folded
from rankscope.diagnose.face.export.perfetto import perfetto
from rankscope.diagnose.face.export.pprof import pprof
from rankscope.diagnose.face.export.speedscope import speedscope
from rankscope.diagnose.face.export.steps_csv import steps_csv
from rankscope.diagnose.infer.fleet.model import Fleet

FORMATS: dict[str, Callable[[Fleet], bytes]] = {
    "speedscope": speedscope,
    "folded": folded,
    "pprof": pprof,
    "perfetto": perfetto,
    "csv": steps_csv,
}
OF_STEPS = ("perfetto", "csv")  # empty if no step was seen
