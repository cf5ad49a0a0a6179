"""What py-spy prints, parsed; and py-spy itself on a known program where it is installed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from live import Program

from rankscope.probes.confine import credentials
from rankscope.unwinder.errors import FallbackFailed
from rankscope.unwinder.names.code import Frame
from rankscope.unwinder.walk import pyspy as fallback
from rankscope.unwinder.walk.pyspy import PySample, explain, find_pyspy, parse_log, parse_raw, record

MEASURED = (
    "thread (16197): MainThread;<module> (target.py:12);Model.forward (target.py:8);spin (target.py:4) 62\n"
    "thread (0x7F3A12345678);f (a.py:1) 3\n"
    'process 77:"python a;b.py";thread (78): Thread-1 (run);run (/x y/thr (1).py:982) 5\n'
    "something else\n"
    "f (a.py:1) many\n"
)


def test_lines_become_samples_innermost_first() -> None:
    first, second, third = parse_raw(MEASURED)
    assert first.tid == 16197
    assert first.thread_name == "MainThread"
    assert first.count == 62
    assert [frame.name for frame in first.frames] == ["spin", "Model.forward", "<module>"]
    assert first.frames[0] == Frame("spin", "target.py", 4, None, stale=False)
    assert second == PySample(0, "", (Frame("f", "a.py", 1, None, stale=False),), 3)
    assert (third.tid, third.thread_name) == (78, "Thread-1 (run)")
    assert third.frames[0].name == "run"


def test_the_log_tells_samples_errors_and_lag() -> None:
    log = "py-spy> 1.25s behind in sampling, results may be inaccurate\npy-spy> Wrote x. Samples: 121 Errors: 4\n"
    assert parse_log(log) == (121, 4, 1.25)
    assert parse_log("") == (0, 0, 0.0)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("Error: Failed to get process executable name. Check that the process is running.", "ended"),
        ("Permission Denied: Try running again with elevated permissions", "CAP_SYS_PTRACE"),
        ("Error: Failed to find python version from target process", "no Python"),
        ("Error: \x1b[1mnew words", "Error: \\x1b[1mnew words"),
        ("", ""),
    ],
)
def test_errors_become_reasons(log: str, words: str) -> None:
    assert words in explain(log)


@given(st.text(alphabet=st.characters(codec="utf-8")), st.text(alphabet="thread ();:0123456789x\n f.py"))
def test_any_output_is_parsed(noise: str, near: str) -> None:
    for text in (noise, near, f"thread (1): a;{noise} 1"):
        for sample in parse_raw(text):
            assert all(frame.name.isprintable() for frame in sample.frames)
        parse_log(text)
        assert explain(text).isprintable()


class Made:
    """A py-spy that has written one line."""

    def __init__(self, pid: int, folder: Path) -> None:
        self.pid, self.ends, self._place = pid, 0, folder / str(pid)
        self._place.write_text(f"thread ({pid}): MainThread;f (a.py:1) 3\n")

    def ended(self) -> bool:
        return True

    def end(self) -> tuple[int, tuple[int, int]]:
        self.ends += 1
        return 0, (os.open(self._place, os.O_RDONLY), os.open(os.devnull, os.O_RDONLY))


def test_what_one_wrote_is_read_after_the_one_before_was_taken_and_all_are_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {pid: Made(pid, tmp_path) for pid in (7, 8, 9)}
    monkeypatch.setattr(fallback, "start", lambda pid, *_: made[pid])
    results = fallback.record_each([7, 8, 9], 0.1)
    assert next(results).pid == 7 and [one.ends for one in made.values()] == [1, 0, 0]
    results.close()
    assert [one.ends for one in made.values()] == [1, 1, 1]
    assert [result.samples[0].count for result in record([7, 8], 0.1)] == [3, 3]


@pytest.fixture
def pyspy() -> None:
    try:
        find_pyspy()
    except FallbackFailed:
        pytest.skip("py-spy is not installed")


@pytest.mark.skipif(os.geteuid() != 0, reason="py-spy needs root")
@pytest.mark.usefixtures("pyspy")
def test_a_known_program_and_one_that_is_gone(start: Callable[..., Program]) -> None:
    program = start()
    gone = start()
    gone.process.kill()
    gone.process.wait()
    seen, missing = record([program.pid, gone.pid], 1.0, rate_hz=29)
    assert seen.problem == ""
    assert seen.taken > 0
    main = next(sample for sample in seen.samples if sample.tid == program.pid)
    names = [frame.name for frame in main.frames]
    assert names.count("descend") == program.facts["depth"]
    assert missing.samples == ()
    assert "ended" in missing.problem


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.usefixtures("pyspy")
def test_it_runs_as_nobody_with_the_two_rights_that_reading_takes(start: Callable[..., Program]) -> None:
    """What parses the target's bytes owns no file of root's: it can write into its own folder alone."""
    program = start()
    sampling = fallback.start(program.pid, 3, 50, True)
    try:
        time.sleep(1)
        lines = Path(f"/proc/{sampling.process.pid}/status").read_text().splitlines()
    finally:
        deadline = time.monotonic() + 30
        while not sampling.ended() and time.monotonic() < deadline:
            time.sleep(0.1)
        code, files = sampling.end()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    assert status["Uid"][0] == str(credentials.NOBODYS_USER)
    assert status["NoNewPrivs"] == ["1"]
    two = credentials.mask((credentials.CAP_DAC_READ_SEARCH, credentials.CAP_SYS_PTRACE))
    assert all(int(status[name][0], 16) == two for name in ("CapPrm", "CapEff", "CapBnd"))
    with os.fdopen(files[0], "rb") as stacks:
        assert code == 0 and stacks.read()
    os.close(files[1])
