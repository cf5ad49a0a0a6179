"""Each source, ability and program in turn is taken from an observer of a live job: what rests on it is not said."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import lacking
import pytest
import small_rank
from at_once import Of, at_once

from rankscope.diagnose.infer.causes.causes import rests_on
from rankscope.diagnose.infer.solve.enough import further_s
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.note import NoteCode
from rankscope.observer.sources import ESSENTIAL, Seen, Source
from rankscope.observer.window.folder import Window

pytestmark = pytest.mark.beside

# Each source, each ability and each program that a window of this job needs, one at a time.
KNOCKED_OUT = {
    "samples": Source.SAMPLES, "rs_sample": Source.SAMPLES, "clock": Source.SAMPLES,
    "run-queue": Source.RUN_QUEUE, "rs_sched_switch": Source.RUN_QUEUE, "rs_sched_waking": Source.RUN_QUEUE,
    "tracepoints": Source.RUN_QUEUE,
    "collectives": Source.COLLECTIVES, "rs_enter_0": Source.COLLECTIVES, "rs_entry_0": Source.COLLECTIVES,
    "rs_leave_0": Source.COLLECTIVES, "rs_call_site": Source.COLLECTIVES, "uprobes": Source.COLLECTIVES,
    "calls": Source.CALLS, "file-calls": Source.FILE_CALLS, "btf": Source.FILE_CALLS, "rs_file_in_0": Source.FILE_CALLS,
    "rs_file_out_0": Source.FILE_CALLS, "exits": Source.EXITS, "rs_sched_exit": Source.EXITS, "flows": Source.FLOWS,
    "gpu": Source.GPU, "ports": Source.PORTS, "host-counters": Source.HOST,
}  # fmt: skip
AT_ONCE = 6  # more than CPUs: most of a window is waiting


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Of[Window]]:
    """The window without what has a name; without nothing: ''."""
    with small_rank.job(tmp_path_factory.mktemp("job"), 29812) as pids:
        without = partial(lacking.recorded, pids, 2.0, tmp_path_factory.mktemp("windows"))
        with at_once(AT_ONCE, without, (*KNOCKED_OUT, "")) as of:
            yield of


@pytest.mark.parametrize("name", KNOCKED_OUT)
def test_each_source_is_knocked_out_in_turn_and_nothing_is_said_that_rests_on_it(
    recorded: Of[Window], request: pytest.FixtureRequest, name: str
) -> None:
    window = recorded(name, request)
    source = KNOCKED_OUT[name]
    state = {one.source: one for one in window.manifest.sources}[source]
    assert state.seen is Seen.NOT and state.why, "the window says what it lacks, and why"
    verdict = diagnose([window])
    assert verdict.status != "hang"
    assert not [one for one in verdict.suspects if source in rests_on(one.component, one.cause, one.scope)]
    if source in ESSENTIAL:
        assert (verdict.status, verdict.suspects) == ("unknown", ())
        assert verdict.notes[0].code is NoteCode.UNSEEN and further_s(verdict) is None
    else:
        assert any(note.code is NoteCode.UNSEEN_PART for note in verdict.notes)


def test_with_nothing_knocked_out_each_source_is_whole(recorded: Of[Window], request: pytest.FixtureRequest) -> None:
    assert not [one for one in recorded("", request).manifest.sources if one.seen is Seen.NOT]
