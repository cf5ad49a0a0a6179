"""Parsers of untrusted bytes: what was found once is never found again, a short run finds nothing, and the fuzzer sees faults."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from campaignkit import results
from campaignkit.cli import main
from campaignkit.fuzz import counted, reach
from campaignkit.fuzz.campaign import REGRESSIONS, Fuzz
from campaignkit.fuzz.counted import Counted
from campaignkit.fuzz.target import Target
from campaignkit.fuzz.targets import TARGETS
from campaignkit.fuzz.watch import Limited, Watch
from campaignkit.results import Result

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
from campaignkit.fuzz.counted import Counted
from campaignkit.fuzz.target import Target
from campaignkit.fuzz.watch import Watch
record = Counted()
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
    known = Counted(inputs=529_217)
    watch = Watch(Target("x", "", lambda data: data, list), known, tmp_path)
    held = bytearray(100 << 20)
    held[::4096] = b"x" * (100 << 8)
    del held
    watch.feed(b"")
    assert known.failures == {} and known.most_bytes < 16 << 20


def test_what_was_counted_is_counted_on_for_one_source(tmp_path: Path) -> None:
    Counted(7, 1.5, 0.1, 4096, {"a.py:3": "KeyError"}, "a").write(tmp_path)
    known = counted.read(tmp_path, "a")
    Watch(Target("x", "", lambda data: data, list), known, tmp_path).feed(b"")
    known.write(tmp_path)
    assert counted.read(tmp_path, "a").inputs == 8
    assert counted.read(tmp_path).failures == {"a.py:3": "KeyError"}
    assert counted.read(tmp_path, "b") == Counted(source="b")
    counted.forget(tmp_path)
    assert counted.read(tmp_path) == Counted()


def branches(data: bytes) -> int:
    if data == b"seldom":
        return 7
    return 1


def test_lines_that_no_input_reaches_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reach, "PACKAGE", __name__.partition(".")[0])
    for inputs, missed in (([b"a"], 1), ([b"a", b"seldom"], 0)):
        reached, every = reach.lines_reached(branches, inputs)
        (lines,) = every.values()
        assert len(lines) == 3 and len(lines - reached[branches.__code__.co_filename]) == missed


def test_a_parser_whose_source_changed_is_run_anew_however_much_was_run(tmp_path: Path) -> None:
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("no atheris for this Python")
    file = tmp_path / "results.jsonl"
    row = Result("fuzz", "stacks", "2026-01-01", "", "another", 5000)
    Counted(5000, source="another").write(tmp_path / "state/stacks")
    command = ["--target", "stacks", "--inputs", "3000", "--state", tmp_path / "state", "--crashes", tmp_path]
    for before, run in ((row, 3000), (None, 1000)):
        # GIVEN results of other sources, or 2000 of another run with these
        (source,) = Fuzz().sources(["stacks"]).values()
        results.write(file, [before or Result("fuzz", "stacks", "2026-01-01", "", source, 2000)])
        done = subprocess.run(
            [FUZZ, *command, "--results", file], capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
        # THEN only what is missing is run, with how much of the parser was reached, and stale rows are gone
        found = [one for one in results.read(file) if one.day != "2026-01-01"]
        assert [(one.source, one.count) for one in found] == [(source, run)]
        assert found[0].most["edges"] > 0 and 0 < found[0].most["lines"] <= found[0].most["lines_of"]
        assert len(results.read(file)) == (1 if before else 2)


def test_a_report_of_too_few_inputs_is_not_good(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted, file = ["stacks", "maps"], tmp_path / "results.jsonl"
    sources = Fuzz().sources(wanted)
    asked = ["fuzz", "--report", "--target", *wanted, "--results", str(file)]
    full = {name: Result("fuzz", name, "2026-01-01", "", sources[name], 1_000_000) for name in wanted}
    results.write(file, full.values())
    assert main(asked) == 0
    for short in (replace(full["maps"], count=999_999), replace(full["maps"], source="another", count=2_000_000)):
        results.write(file, [full["stacks"], short])
        assert main(asked) == 1
        said = capsys.readouterr().out
        assert "fewer than 1,000,000 of 1 of 2 cases: maps " in said
        assert ("stale, the sources of 1 cases have changed since: maps" in said) == (short.source == "another")
    file.unlink()
    assert main(asked) == 1


def test_a_target_that_is_none_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="64"):
        main(["fuzz", "--target", "nothing", "--state", str(tmp_path)])


@pytest.mark.skipif(importlib.util.find_spec("atheris") is None, reason="atheris is made for no Python like this one")
def test_a_short_run_over_all_parsers_finds_nothing_and_goes_on_where_it_ended(tmp_path: Path) -> None:
    command = [
        REPOSITORY / "scripts/fuzz",
        "--state",
        tmp_path / "state",
        "--crashes",
        tmp_path / "crashes",
        "--results",
        tmp_path / "results.jsonl",
        "--json",
        tmp_path / "said",
    ]
    jobs = ["--jobs", str(os.cpu_count() or 1)]
    done = subprocess.run(
        [*command, *jobs, "--seconds", "0.3"], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = {name: one["count"] for name, one in json.loads((tmp_path / "said").read_text()).items()}
    assert counted.keys() == BY_NAME.keys()
    assert all(inputs >= 10 for inputs in counted.values()), counted
    assert not [
        left
        for left in Path("/dev/shm").glob("rankscope-fuzz-*")
        if not Path(f"/proc/{left.name.rpartition('-')[2]}").exists()
    ]
    again = [*command, "--target", "stacks", "--inputs", str(counted["stacks"] + 5000)]
    assert subprocess.run(again, capture_output=True, check=False, timeout=120).returncode == 0
    inputs = json.loads((tmp_path / "said").read_text())["stacks"]["count"]
    assert counted["stacks"] + 5000 <= inputs < counted["stacks"] + 20_000
