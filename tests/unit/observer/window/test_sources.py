"""A window says of each source whether it was there; of older windows their notes say it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from builders import Job, build

from rankscope.observer.live import sources
from rankscope.observer.sources import WHOLE, Seen, Source, SourceState, States, noted, states
from rankscope.observer.window.folder import read_window, write_window
from rankscope.observer.window.manifest import ProbeCost
from rankscope.probes.bpf.module import Refused
from rankscope.probes.calls.attached import Untimed


def _lacking(found: States) -> dict[Source, Seen]:
    return {one.source: one.seen for one in found if one.seen is not Seen.WHOLE}


def test_states_are_written_and_read(tmp_path: Path) -> None:
    (window,) = build(Job())
    said = states([SourceState(Source.SAMPLES, Seen.NOT, "rs_sample is not attached: Permission denied")])
    window = replace(window, manifest=replace(window.manifest, sources=said))
    assert read_window(write_window(window, tmp_path)).manifest.sources == said


def test_a_source_that_this_version_does_not_know_is_left_out(tmp_path: Path) -> None:
    (window,) = build(Job())
    folder = write_window(window, tmp_path)
    content = json.loads((folder / "window.json").read_text())
    content["sources"] |= {"dreams": {"seen": "not", "why": "nobody sleeps"}}
    (folder / "window.json").write_text(json.dumps(content))
    assert read_window(folder).manifest.sources == WHOLE


@pytest.mark.parametrize(
    ("note", "source"),
    [
        ("running threads are not sampled: Permission denied", Source.SAMPLES),
        ("rs_sched_switch is not attached: sched:sched_switch: Permission denied", Source.RUN_QUEUE),
        ("allreduce in libtorch_cpu.so is not timed: Permission denied", Source.COLLECTIVES),
        ("file calls are not timed: this kernel has no BTF", Source.FILE_CALLS),
    ],
)
def test_of_an_older_window_its_notes_tell(tmp_path: Path, note: str, source: Source) -> None:
    (window,) = build(Job())
    folder = write_window(replace(window, manifest=replace(window.manifest, notes=(note,))), tmp_path)
    content = json.loads((folder / "window.json").read_text())
    del content["sources"]
    (folder / "window.json").write_text(json.dumps(content))
    assert _lacking(read_window(folder).manifest.sources) == {source: Seen.NOT}


def test_notes_of_a_healthy_window_take_nothing_away() -> None:
    notes = ("gc in python3.11 is not timed: no symbol", "rank 3: only 2 markers in the window",
             "backward is called more than 1000 times a second per process: no longer timed")  # fmt: skip
    assert noted(notes) == WHOLE


def test_the_worst_of_several_states_counts() -> None:
    part, gone = SourceState(Source.FLOWS, Seen.PART, "some"), SourceState(Source.FLOWS, Seen.NOT, "all")
    assert states([part, gone, part])[list(Source).index(Source.FLOWS)] == gone


def test_each_program_that_is_loaded_belongs_to_a_source() -> None:
    for name, source in sources.programs().items():
        (found,) = sources.of_programs([Refused(name, "Permission denied")])
        assert (found.source, found.seen) == (source, Seen.NOT)


def test_calls_that_are_too_many_are_a_part_and_refused_ones_are_missing() -> None:
    file = ("8:1", 7)
    often, refused = (
        Untimed(file, frozenset({"collective"}), "too often", refused=False),
        Untimed(file, frozenset({"gc"}), "Permission denied"),
    )
    assert _lacking(states(sources.of_calls([often, refused]))) == {
        Source.COLLECTIVES: Seen.PART,
        Source.CALLS: Seen.NOT,
    }


def test_a_program_that_is_attached_and_never_ran_gives_nothing() -> None:
    costs = [ProbeCost("rs_sample", 0, 0), ProbeCost("rs_sched_switch", 9, 9)]
    assert _lacking(states(sources.never_ran(costs))) == {Source.SAMPLES: Seen.NOT}
    assert not [*sources.never_ran([])], "the kernel keeps no account"
