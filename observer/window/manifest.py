"""The manifest of a window: subject, losses, costs. Encoded as JSON, decoded as untrusted data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

from rankscope.observer.sources import WHOLE, Seen, Source, SourceState, States, noted, state, states
from rankscope.probes.base.text import printable

# its tables are in schema.py, so that users of the manifest alone need no Arrow
WINDOW_SCHEMA = "rankscope.window/2"
FIRST_SCHEMA = "rankscope.window/1"  # read by upgrade.py
SCHEMAS = (WINDOW_SCHEMA, FIRST_SCHEMA)  # readable ones
EVENTS_DROPPED = "ring_full"  # the loss of events between kernel and observer
_LONGEST_TEXT = 4096
# the last day of the year 9999: a window that begins then would end beyond the calendar
_LAST_START_S = 253_402_214_400.0
_DAY_S = 86_400.0  # no window is longer: observers take an hour
_MOST_COUNTED = (1 << 63) - 1  # the largest integer of tables and other programs
_SOURCES = frozenset(source.value for source in Source)  # newer observers may name more
FIRST_SAMPLING_HZ = 99.0  # of windows whose manifest does not state it


@dataclass(frozen=True, slots=True)
class Loss:
    """A count of data that could not be observed on the whole host: events dropped, stacks not
    walked.
    """

    source: str
    name: str
    count: int


@dataclass(frozen=True, slots=True)
class ProbeCost:
    """Run count and time of one BPF program during the window."""

    program: str
    run_count: int
    run_time_ns: int


@dataclass(frozen=True, slots=True)
class Manifest:
    """Metadata of a window.

    `start` is Unix time in seconds; `sampling_hz`: samples per second of a running thread;
    `machine`: distinguishes hosts of one name, '' if unknown; `sources`: the state of each source.
    """

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
        """Pickle by values: workers send 125,000 of them, and this takes a third of the time."""
        return Manifest, _VALUES(self)


_VALUES = attrgetter(*Manifest.__dataclass_fields__)


def to_json(manifest: Manifest, rows: Mapping[str, int]) -> dict[str, Any]:
    """Encode as JSON values. `rows`: number of rows of each table."""
    content = asdict(manifest)
    content["host"] = printable(manifest.host, 256)
    content["jobs"] = [printable(job, _LONGEST_TEXT) for job in manifest.jobs]
    content["notes"] = [printable(note, _LONGEST_TEXT) for note in manifest.notes]
    content["sources"] = {one.source.value: _said(one) for one in manifest.sources}
    return {**content, "rows": dict(rows)}


def from_json(content: Mapping[str, Any]) -> tuple[Manifest, dict[str, int]]:
    """Decode the manifest, and the number of rows of each table.

    Raises KeyError, TypeError, ValueError, OverflowError.
    """
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
    """Encode the state of a source: 'whole', or a mapping with how much was seen and why."""
    if one.seen is Seen.WHOLE:
        return str(one.seen.value)
    return {"seen": one.seen.value, "why": printable(one.why, _LONGEST_TEXT)}


def _sources(content: Mapping[str, Any]) -> States:
    """Decode the states of the sources; for an older window, derive them from its notes."""
    if "sources" not in content:
        return noted(str(note) for note in content.get("notes", ()))
    said = {str(name): one for name, one in dict(content["sources"]).items() if one != Seen.WHOLE.value}
    if not said:
        return WHOLE
    return states(state(name, str(one["seen"]), _short(one["why"])) for name, one in said.items() if name in _SOURCES)


def _short(text: Any) -> str:
    """Convert to a text of at most `_LONGEST_TEXT` characters."""
    return str(text)[:_LONGEST_TEXT]


def _counted(count: Any) -> int:
    """Limit a count to 0 … 2^63 - 1: the sum of two with thousands of digits could not even be printed."""
    return min(max(int(count), 0), _MOST_COUNTED)
