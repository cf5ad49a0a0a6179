"""The manifest of a window: what it is about, what was lost, what it cost. As JSON, and back with every reason to distrust it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from rankscope.observer.sources import WHOLE, Seen, Source, SourceState, States, noted, state, states
from rankscope.probes.text import printable

WINDOW_SCHEMA = "rankscope.window/2"  # its tables are in schema.py: who wants no table needs no Arrow
FIRST_SCHEMA = "rankscope.window/1"  # is read by upgrade.py
SCHEMAS = (WINDOW_SCHEMA, FIRST_SCHEMA)  # that can be read
EVENTS_DROPPED = "ring_full"  # the loss of events between kernel and observer
_LONGEST_TEXT = 4096
_LAST_START_S = 253_402_214_400.0  # the last day of the year 9999: what begins then ends where no calendar goes on
_DAY_S = 86_400.0  # no window is longer: observers take an hour
_MOST_COUNTED = (1 << 63) - 1  # what tables and other programs take for a whole number
_SOURCES = frozenset(source.value for source in Source)  # newer observers may name more
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
    tells hosts of one name apart, '' where nobody says; `sources`: what each source gave."""

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
    sources: States = WHOLE

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
    content["sources"] = {one.source.value: _said(one) for one in manifest.sources}
    return {**content, "rows": dict(rows)}


def from_json(content: Mapping[str, Any]) -> tuple[Manifest, dict[str, int]]:
    """The manifest, and how many rows each table should have. KeyError, TypeError, ValueError, OverflowError where it is none."""
    manifest = Manifest(
        schema=str(content["schema"]),
        host=str(content["host"])[:256],
        start=float(content["start"]),
        seconds=float(content["seconds"]),
        jobs=tuple(_short(job) for job in content["jobs"]),
        version=str(content.get("version", ""))[:64],
        notes=tuple(_short(note) for note in content.get("notes", ())),
        losses=tuple(
            Loss(_short(x["source"]), _short(x["name"]), _counted(x["count"])) for x in content.get("losses", ())
        ),
        costs=tuple(
            ProbeCost(_short(x["program"]), _counted(x["run_count"]), _counted(x["run_time_ns"]))
            for x in content.get("costs", ())
        ),
        sampling_hz=float(content.get("sampling_hz", FIRST_SAMPLING_HZ)),
        machine=printable(str(content.get("machine", "")), 64),
        sources=_sources(content),
    )
    if not 0 <= manifest.start < _LAST_START_S:
        raise ValueError(f"a window that began at {manifest.start}")
    if not 0 < manifest.seconds <= _DAY_S:
        raise ValueError(f"a window of {manifest.seconds} seconds")
    if not 0 < manifest.sampling_hz < float("inf"):
        raise ValueError(f"samples at {manifest.sampling_hz} Hz")
    return manifest, {str(name): _counted(rows) for name, rows in dict(content["rows"]).items()}


def _said(one: SourceState) -> str | dict[str, str]:
    if one.seen is Seen.WHOLE:
        return str(one.seen.value)
    return {"seen": one.seen.value, "why": printable(one.why, _LONGEST_TEXT)}


def _sources(content: Mapping[str, Any]) -> States:
    """What the window says of its sources; of an older one what its notes say."""
    if "sources" not in content:
        return noted(str(note) for note in content.get("notes", ()))
    said = {str(name): one for name, one in dict(content["sources"]).items() if one != Seen.WHOLE.value}
    if not said:
        return WHOLE
    return states(state(name, str(one["seen"]), _short(one["why"])) for name, one in said.items() if name in _SOURCES)


def _short(text: Any) -> str:
    return str(text)[:_LONGEST_TEXT]


def _counted(count: Any) -> int:
    """A count, as large as a counter may be: of some thousands of digits the sum of two could not even be printed."""
    return min(max(int(count), 0), _MOST_COUNTED)
