"""What scripts/chaos takes for bad: each sign alone is enough, and what is documented is none."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from chaoskit import cli, command, record
from chaoskit.case import Result, key_of
from chaoskit.cli import left_of, main, table
from chaoskit.command import Ended
from chaoskit.job import PROGRAMS
from chaoskit.kernel import Held
from chaoskit.kinds import KINDS
from chaoskit.record import read
from chaoskit.sources import fingerprint, fingerprints

GOOD = Ended(0, 9.0, "out/window\n", "", killed=False, processes=())
LINE = "rankscope: cannot write into /x: no space left on device\nrankscope: Free space.\n"


@pytest.mark.parametrize(
    ("ended", "problem"),
    [
        (GOOD, ""),
        (Ended(69, 2.0, "", LINE, False, ()), ""),
        (Ended(-9, 2.0, "", "", True, ()), ""),
        (Ended(0, 17.5, "x", "", False, ()), "took 17.5 s"),
        (Ended(0, 17.5, "x", "", False, (), queued_s=0.6), ""),
        (Ended(0, 19.5, "x", "", False, (), queued_s=1.0), "took 19.5 s, 1.0 s of them in the queue for a CPU"),
        (Ended(70, 2.0, "", LINE, False, ()), "exit 70"),
        (Ended(-11, 2.0, "", "", False, ()), "exit -11"),
        (Ended(-9, 2.0, "", "", False, (), "by somebody else on this host"), "exit -9, by somebody else on this host"),
        (Ended(69, 2.0, "", "", False, ()), "0 lines of complaint"),
        (Ended(69, 2.0, "", LINE * 3, False, ()), "6 lines of complaint"),
        (Ended(0, 2.0, "x", "Traceback (most recent call last):\n", False, ()), "a traceback"),
        (Ended(1, 2.0, "", "", False, ()), "nothing said"),
        (Ended(0, 2.0, "x", "", False, ("python3",)), "left running: python3"),
        (Ended(-9, 2.0, "", "", True, ("python3",)), "left running: python3"),
    ],
)
def test_each_sign_of_trouble_is_named(ended: Ended, problem: str) -> None:
    assert ended.problems(window_s=2.0) == ([problem] if problem else [])


def test_what_the_kernel_holds_is_compared_by_number() -> None:
    before = Held(frozenset({("map", 7)}), frozenset())
    after = Held(frozenset({("map", 7), ("link", 3)}), frozenset({"p:x"}))
    assert after.beyond(before).words() == ["link 3", "uprobe_events"]
    assert before.beyond(after).words() == []
    assert after.both(before).words() == ["map 7"]


def test_kinds_have_names_of_their_own_and_commands() -> None:
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    keys = [key_of(kind, turn, 0) for kind in KINDS for turn in range(len(kind.commands))]
    assert len(set(keys)) == len(keys)


def test_results_are_read_back_and_bad_ones_are_named(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == {}
    kind = KINDS[0]
    bad = Result("nothing record-0 0", "verdict", 0, 9.0, 1.0, 0.1, "said", ("exit 70",))
    lines = table({kind: [bad]}, fingerprints())
    assert lines[-1] == "  nothing record-0 0: exit 70: said"
    assert lines[1].split()[:7] == ["nothing", "1", "0", "1", "0", "0", "1"]
    with pytest.raises(SystemExit, match="64"):
        main(["--kinds", "none-such"])


def test_a_storm_ends_with_the_rank_below_which_it_blows() -> None:
    text = "import subprocess, sys, time\nprint(subprocess.Popen([sys.executable, *sys.argv[1:]]).pid, flush=True)\ntime.sleep(60)"
    storm = [str(PROGRAMS / "storm.py"), "forks", "5"]
    rank = subprocess.Popen([sys.executable, "-c", text, *storm], stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    pid = int(rank.stdout.readline())
    time.sleep(1.0)  # until it has begun
    assert Path(f"/proc/{pid}").exists()
    rank.kill()
    rank.wait()
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and time.monotonic() < end:
        time.sleep(0.05)
    assert not Path(f"/proc/{pid}").exists()


def test_who_killed_a_command_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "rankscope"
    program.write_text("#!/bin/sh\nkill -9 $$\n")
    program.chmod(0o755)
    monkeypatch.setattr(command, "rankscope", lambda: program)
    ended = command.run([], command.Plan(tmp_path), 1.0)
    assert (ended.code, ended.by) == (-9, "by somebody else on this host")
    counts = iter((3, 4))
    monkeypatch.setattr(command, "_starved", lambda: next(counts))
    assert command.run([], command.Plan(tmp_path), 1.0).by == "by the kernel, which had no more memory"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.undo()
    monkeypatch.setattr(command, "rankscope", lambda: program)
    monkeypatch.setattr(command, "_GIVEN_UP_S", 0.2)
    assert command.run([], command.Plan(tmp_path), 0.1).by == "by us, as it did not end"


def test_what_one_run_recorded_the_next_goes_on_with_wherever_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred moments of SIGKILL take more than one session: the record is a file that is committed."""
    kept = tmp_path / "results.json"
    monkeypatch.setattr(cli, "RECORDED", kept)
    args = cli._arguments(["--record", "--kinds", "killed", "--seeds", "67"])
    assert args.results == kept
    one = Result("killed record-0 0", "killed", -9, 1.0, 1.0, 0.1, "", (), "abc+")
    record.keep(kept, one)
    other = replace(one, key="killed record-1 0")
    record.keep(kept, other)  # beside what is there
    assert read(kept) == {one.key: one, other.key: other}
    assert len(kept.read_text().splitlines()) == 4  # a case a line, so that records merge
    assert (cli.REPOSITORY / "tests/data").is_dir()


def test_a_result_is_worth_something_for_its_sources_alone(tmp_path: Path) -> None:
    for room in ("probes", "unwinder", "observer", "diagnose/cli", "diagnose/sweep", "diagnose/model"):
        (tmp_path / room).mkdir(parents=True)
        (tmp_path / room / "one.py").write_text("1\n")
    (tmp_path / "diagnose/collector.py").write_text("1\n")
    before = {command: fingerprint(command, tmp_path) for command in ("record", "diagnose", "sweep")}
    (tmp_path / "diagnose/model/one.py").write_text("2\n")
    after = {command: fingerprint(command, tmp_path) for command in before}
    assert {command for command in before if before[command] != after[command]} == {"diagnose"}
    kind = next(kind for kind in KINDS if kind.name == "nothing")
    cases = [(kind, turn, 0) for turn in range(3)]
    keys = [key_of(*case) for case in cases]
    good = {
        key: Result(key, "verdict", 0, 1.0, 1.0, 0.1, "", (), source=before[key.split()[1][:-2]]) for key in keys[:2]
    }
    assert left_of(cases, good, after, again=False, renew=False) == cases[2:]
    assert left_of(cases, good, after, again=False, renew=True) == cases[1:]
    bad = {**good, keys[0]: replace(good[keys[0]], problems=("exit 70",))}
    assert left_of(cases, bad, after, again=True, renew=False) == [cases[0], cases[2]]


def test_of_a_killed_command_it_is_told_what_it_was_doing() -> None:
    assert (
        Ended(-9, 1.0, "", "2 ranks found; loading kernel probes\nobserving 1 s\n", True, ()).last_words
        == "observing 1 s"
    )
    assert Ended(-9, 0.1, "", "", True, ()).last_words == "starting"
    assert Ended(69, 1.0, "x", "progress\n" + LINE, False, ()).last_words == "rankscope: Free space."
