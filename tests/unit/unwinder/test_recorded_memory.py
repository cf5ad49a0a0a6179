"""The same walk and names over memory that was recorded from real interpreters, without any of them at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostwalk import OK, HostWalk
from recording import load

from rankscope.unwinder.interpreter.threads import list_threads
from rankscope.unwinder.names.code import Symboliser

DATA = Path(__file__).parents[2] / "data" / "unwinder"
RECORDINGS = sorted(DATA.glob("*.json.gz"))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name.removesuffix(".json.gz"))
def test_a_recorded_process_shows_what_it_showed_alive(path: Path, tmp_path: Path, host_walk: HostWalk) -> None:
    # GIVEN
    recorded = load(path)
    interpreter, memory = recorded.interpreter, recorded.memory
    symbols = Symboliser(memory, interpreter.offsets, interpreter.code_type_address)
    # WHEN
    threads = list_threads(interpreter, memory, recorded.proc_tree(tmp_path))
    # THEN
    assert [str(thread.host_tid) for thread in threads] == list(recorded.expected)
    for thread in threads:
        walked = host_walk.walk(interpreter.kernel_record(), memory, thread.tstate_address, thread.thread_id)
        assert walked.status == OK
        frames = [symbols.resolve(*frame) for frame in walked.frames]
        found = [[frame.name, frame.file, frame.first_line, frame.line] for frame in frames]
        assert found == recorded.expected[str(thread.host_tid)]
        assert not any(frame.stale for frame in frames)


def test_there_is_a_recording_of_every_version_that_could_be_had() -> None:
    assert {path.name.split(".")[1].partition("-")[0] for path in RECORDINGS} >= set(map(str, range(8, 16)))
