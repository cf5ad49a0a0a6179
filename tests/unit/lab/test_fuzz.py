"""Parsers of untrusted bytes: what was found once is never found again, a short run finds nothing, and the fuzzer sees faults."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzkit import ledger, record
from fuzzkit.cli import REGRESSIONS, main
from fuzzkit.record import Record
from fuzzkit.sources import sources_of
from fuzzkit.target import Target
from fuzzkit.targets import TARGETS
from fuzzkit.watch import Limited, Watch

REPOSITORY = Path(__file__).resolve().parents[3]
FUZZ = REPOSITORY / "scripts/fuzz"
BY_NAME = {target.name: target for target in TARGETS}
KEPT = sorted(path for path in REGRESSIONS.glob("*/*"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_an_input_that_once_did_harm_does_none_now(path: Path, tmp_path: Path) -> None:
    with Limited(BY_NAME[path.parent.name], tmp_path) as watch:
        watch.feed(path.read_bytes())
    assert watch.record.failures == {}


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_target_keeps_to_its_limits_with_its_own_seeds(target: Target, tmp_path: Path) -> None:
    seeds = target.all_seeds()
    with Limited(target, tmp_path) as watch:
        for seed in seeds:
            watch.feed(seed)
    assert len(seeds) >= 1
    assert watch.record.failures == {}


def broken(data: bytes) -> None:
    if data.startswith(b"key"):
        raise KeyError(data)
    if data.startswith(b"allowed"):
        raise ValueError(data)
    if data.startswith(b"slow"):
        while True:
            pass
    if data.startswith(b"large"):
        bytearray(200 << 20)[::4096] = b"x" * (200 << 8)


def test_errors_that_are_not_documented_time_and_memory_are_seen_and_kept(tmp_path: Path) -> None:
    with Limited(Target("broken", "", broken, list, raises=(ValueError,)), tmp_path) as watch:
        for data in (b"fine", b"allowed", b"key 1", b"key 2", b"slow", b"large", b"fine"):
            watch.feed(data)
    places = list(watch.record.failures)
    assert [place.partition(" ")[0] for place in places] == ["KeyError", "TooSlow", "time", "memory"]
    # One input for each place: the second KeyError is the first one again.
    assert sorted(path.read_bytes() for path in (tmp_path / "broken").iterdir()) == [b"key 1", b"large", b"slow"]
    assert watch.record.inputs == 7


_BELOW_A_LARGE_PARENT = """
import subprocess, sys
held = bytearray(400 << 20)
held[::4096] = b"x" * (400 << 8)
sys.exit(subprocess.run([sys.executable, "-c", sys.argv[1]]).returncode)
"""
_WATCHED = """
from pathlib import Path
from fuzzkit.record import Record
from fuzzkit.sources import sources_of
from fuzzkit.target import Target
from fuzzkit.watch import Watch
record = Record()
Watch(Target("x", "", lambda data: data, list), record, Path("/nowhere")).feed(b"x")
print(record.most_bytes >> 20, record.failures)
"""


def test_the_memory_of_who_started_the_process_is_not_the_inputs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _BELOW_A_LARGE_PARENT, _WATCHED],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY / "scripts")},
        timeout=120,
    )
    assert done.stdout == "0 {}\n", done.stdout


def test_what_a_run_that_goes_on_took_to_begin_is_no_inputs_memory(tmp_path: Path) -> None:
    known = Record(inputs=529_217)
    watch = Watch(Target("x", "", lambda data: data, list), known, tmp_path)
    held = bytearray(100 << 20)
    held[::4096] = b"x" * (100 << 8)
    del held
    watch.feed(b"")
    assert known.failures == {} and known.most_bytes < 16 << 20


def test_what_was_counted_is_counted_on(tmp_path: Path) -> None:
    Record(7, 1.5, 0.1, 4096, {"a.py:3": "KeyError"}).write(tmp_path)
    known = record.read(tmp_path)
    Watch(Target("x", "", lambda data: data, list), known, tmp_path).feed(b"")
    known.write(tmp_path)
    assert record.read(tmp_path).inputs == 8
    assert record.read(tmp_path).failures == {"a.py:3": "KeyError"}
    assert record.read(tmp_path / "none") == Record()


def test_runs_add_up_in_the_committed_record_each_once_and_for_one_source() -> None:
    kept: ledger.Ledger = {}
    for run, inputs in (
        (Record(7, 1.5, 0.1, 4096, source="a"), 7),
        (Record(10, 2.5, 0.3, 1024, source="a", kept_inputs=7, kept_cpu_seconds=1.5), 10),
        (Record(10, 2.5, 0.3, 1024, source="a", kept_inputs=10, kept_cpu_seconds=2.5), 10),
        (Record(5, 1.0, 0.2, 0, source="a"), 15),  # on another machine
        (Record(9, 1.0, 0.2, 0, {"a.py:3": "KeyError"}, source="a"), 15),
        (Record(9, 1.0, 0.2, 0), 15),
    ):
        kept = ledger.added(kept, "x", run)
        assert kept["x"].inputs == inputs
    assert kept["x"] == ledger.Entry("a", 15, 3.5, 0.3, 4096)
    assert ledger.added(kept, "x", Record(2, 0.5, 0.1, 0, source="b"))["x"].inputs == 2
    assert ledger.current(kept, {"x": "a"}) == kept and ledger.current(kept, {"x": "b"}) == {}


def test_what_the_record_has_from_other_runs_need_not_be_run_again() -> None:
    kept = {"x": ledger.Entry("a", 600, 3.5, 0.3, 4096)}
    assert ledger.elsewhere(kept, "x", Record()) == 600
    assert ledger.elsewhere(kept, "x", Record(500, source="a", kept_inputs=200)) == 400, "200 of it were run here"
    assert ledger.elsewhere(kept, "x", Record(500, source="b", kept_inputs=500)) == 600
    assert ledger.elsewhere({}, "x", Record(500, source="a")) == 0


def test_a_parser_whose_source_changed_is_run_anew_however_much_was_run(tmp_path: Path) -> None:
    Record(5000, source="another").write(tmp_path / "state/stacks")
    command = ["--target", "stacks", "--inputs", "3000", "--state", str(tmp_path / "state"), "--crashes", str(tmp_path)]
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("no atheris for this Python")
    for more in ([], ["--missing", "--records", str(tmp_path / "records.json")]):
        done = subprocess.run([FUZZ, *command, *more], capture_output=True, text=True, check=False, timeout=120)
        assert done.returncode == 0, done.stderr
        now = record.read(tmp_path / "state/stacks")
        assert now.source != "another"
        assert now.inputs == (1000 if more else 3000)
        # WHEN the record has 2000 of another run, 1000 are missing in an empty folder
        ledger.write(tmp_path / "records.json", {"stacks": ledger.Entry(now.source, 2000, 1.0, 0.1, 1)})
        shutil.rmtree(tmp_path / "state")


def test_a_report_of_too_few_inputs_is_not_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted, records = ["stacks", "maps"], tmp_path / "records.json"
    sources = sources_of(wanted)
    asked = ["--report", "--target", *wanted, "--records", str(records)]
    full = {name: ledger.Entry(sources[name], 1_000_000, 1.0, 0.1, 1) for name in wanted}
    ledger.write(records, full)
    assert main(asked) == 0
    for short in (ledger.Entry(sources["maps"], 999_999, 1.0, 0.1, 1), ledger.Entry("another", 2_000_000, 1.0, 0.1, 1)):
        ledger.write(records, full | {"maps": short})
        assert main(asked) == 1
        assert "fewer than 1,000,000 inputs of 1 of 2 targets: maps " in capsys.readouterr().out
    records.unlink()
    assert main(asked) == 1


def test_counts_of_another_source_are_not_gone_on_with(tmp_path: Path) -> None:
    Record(7, 1.5, 0.1, 4096, {"a.py:3": "KeyError"}, "a").write(tmp_path)
    assert record.begun(tmp_path, "a").inputs == 7
    assert record.begun(tmp_path, "b") == Record(source="b")


def test_a_target_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="64"):
        main(["--target", "nothing", "--state", str(tmp_path)])


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is made for no Python like this one")
def test_a_short_run_over_all_parsers_finds_nothing_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    command = [
        REPOSITORY / "scripts/fuzz",
        "--state",
        tmp_path / "state",
        "--crashes",
        tmp_path / "crashes",
        "--json",
        tmp_path / "said",
    ]
    jobs = ["--jobs", str(os.cpu_count() or 1)]
    done = subprocess.run(
        [*command, *jobs, "--seconds", "0.7"], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = {name: one["inputs"] for name, one in json.loads((tmp_path / "said").read_text()).items()}
    assert counted.keys() == BY_NAME.keys()
    assert all(inputs >= 10 for inputs in counted.values()), counted
    assert not [
        left
        for left in Path("/dev/shm").glob("rankscope-fuzz-*")
        if not Path(f"/proc/{left.name.rpartition('-')[2]}").exists()
    ]
    again = [*command, "--target", "stacks", "--inputs", str(counted["stacks"] + 5000)]
    assert subprocess.run(again, capture_output=True, check=False, timeout=120).returncode == 0
    inputs = json.loads((tmp_path / "said").read_text())["stacks"]["inputs"]
    assert counted["stacks"] + 5000 <= inputs < counted["stacks"] + 20_000
    for mode in (("--record",), ("--record",), ("--report", "--inputs", str(inputs))):
        told = [*command, "--target", "stacks", *mode, "--records", tmp_path / "records"]
        assert subprocess.run(told, capture_output=True, check=False, timeout=120).returncode == 0
    assert json.loads((tmp_path / "said").read_text())["stacks"]["inputs"] == inputs
