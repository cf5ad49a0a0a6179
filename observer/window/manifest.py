"""The manifest of a window: what it is about, what was lost, what it cost. As JSON, and back with every reason to distrust it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from rankscope.probes.text import printable

WINDOW_SCHEMA = "rankscope.window/2"  # its tables are in schema.py: who wants no table needs no Arrow
FIRST_SCHEMA = "rankscope.window/1"  # is read by upgrade.py
SCHEMAS = (WINDOW_SCHEMA, FIRST_SCHEMA)  # that can be read
EVENTS_DROPPED = "ring_full"  # the loss of events between kernel and observer
_LONGEST_TEXT = 4096
FIRST_SAMPLING_HZ = 99.0  # of windows whose manifest does not say it


@dataclass(frozen=True, slots=True)
class Loss:
    """Something that was to be observed and was not, on the whole host: events dropped, stacks not walked."""

    source: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """What the kernel spent in one BPF program during the window."""

    program: str
    run_count: int
    run_time_ns: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """What the window is about. `start` is Unix time in seconds; `sampling_hz`: samples per second of a running thread; `machine`: what
    tells hosts of one name apart, '' where nobody says."""

    schema: str
    host: str
    start: float
    seconds: float
    jobs: tuple[str, ...]
    version: str
    notes: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()
    costs: tuple[ProbeCost, ...] = ()
    sampling_hz: float = FIRST_SAMPLING_HZ
    machine: str = ""

    def __reduce__(self) -> tuple[type[Manifest], tuple[Any, ...]]:
        """Workers send 125,000 of them: by its values one takes a third of the time that it takes field by field."""
        return Manifest, _VALUES(self)


_VALUES = attrgetter(*Manifest.__dataclass_fields__)


def to_json(manifest: Manifest, rows: Mapping[str, int]) -> dict[str, Any]:
    """`rows`: how many rows each table has."""
    content = asdict(manifest)
    content["host"] = printable(manifest.host, 256)
    content["jobs"] = [printable(job, _LONGEST_TEXT) for job in manifest.jobs]
    content["notes"] = [printable(note, _LONGEST_TEXT) for note in manifest.notes]
    return {**content, "rows": dict(rows)}


def from_json(content: Mapping[str, Any]) -> tuple[Manifest, dict[str, Any]]:
    """The manifest, and how many rows each table should have. KeyError, TypeError, ValueError, OverflowError where it is none."""
    manifest = Manifest(
        schema=str(content["schema"]),
        host=str(content["host"])[:256],
        start=float(content["start"]),
        seconds=float(content["seconds"]),
        jobs=tuple(str(job) for job in content["jobs"]),
        version=str(content.get("version", ""))[:64],
        notes=tuple(str(note) for note in content.get("notes", ())),
        losses=tuple(Loss(str(x["source"]), str(x["name"]), int(x["count"])) for x in content.get("losses", ())),
        costs=tuple(
            ProbeCost(str(x["program"]), int(x["run_count"]), int(x["run_time_ns"])) for x in content.get("costs", ())
        ),
        sampling_hz=float(content.get("sampling_hz", FIRST_SAMPLING_HZ)),
        machine=printable(str(content.get("machine", "")), 64),
    )
    if not manifest.seconds > 0:
        raise ValueError(f"a window of {manifest.seconds} seconds")
    if not 0 < manifest.sampling_hz < float("inf"):
        raise ValueError(f"samples at {manifest.sampling_hz} Hz")
    return manifest, dict(content["rows"])
