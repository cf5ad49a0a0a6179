"""What scripts/chaos takes for bad: each sign alone is enough, and what is documented is none."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import Job, build

from campaignkit import sources
from campaignkit.chaos import command
from campaignkit.chaos.campaign import Chaos, result_of
from campaignkit.chaos.case import Outcome, key_of
from campaignkit.chaos.command import VERDICTS, Ended, Plan
from campaignkit.chaos.command import run as run_command
from campaignkit.chaos.faults.kinds import KINDS
from campaignkit.chaos.job import PROGRAMS
from campaignkit.chaos.kernel import Held
from campaignkit.cli import main
from campaignkit.reached import PACKAGE
from campaignkit.results import merged
from campaignkit.sources import PRINTS_IMPORTS, missing, of_command, parts_of
from rankscope.observer.window.folder import write_window

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


def test_runs_of_a_case_add_up_and_bad_ones_are_named() -> None:
    good = result_of("nothing record-0", 0, Outcome("verdict", 0, 9.0, 1.0, 0.1, "said", (), 0.5, 0.02), "abc", "x")
    bad = result_of("nothing record-0", 1, Outcome("one line", 70, 4.0, 1.2, 0.3, "said", ("exit 70",)), "abc", "x")
    both = merged(good, bad)
    assert both.problems == ("seed 1: exit 70: said",)
    assert both.most == {"seconds": 8.5, "gap_s": 0.3, "fork_s": 0.02}
    line = Chaos().table({both.case: both})[1]
    assert line.split() == ["nothing", "record-0", "2", "1", "1", "0", "1", "8.5", "1.10x", "0.30", "0.02"]
    with pytest.raises(SystemExit, match="64"):
        main(["chaos", "--kinds", "none-such"])


def test_a_storm_ends_with_the_rank_below_which_it_blows(tmp_path: Path) -> None:
    text = "import subprocess, sys, time\nprint(subprocess.Popen([sys.executable, *sys.argv[1:]]).pid, flush=True)\ntime.sleep(60)"
    storm = [str(PROGRAMS / "storm.py"), "crowd", "8"]
    rank = subprocess.Popen([sys.executable, "-c", text, *storm], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    assert rank.stdout is not None
    pid = int(rank.stdout.readline())
    time.sleep(1.0)  # until it has begun
    assert "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
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


MAIN = """
from typing import TYPE_CHECKING
from OURS.probes.base import room
if TYPE_CHECKING:
    from OURS.diagnose.infer.verdict import contract

def record():
    from OURS.diagnose.face.cli import record as command

@app.command(name="prune")
def prune():
    from OURS.diagnose.face.cli import prune as command

def diagnose():
    from OURS.diagnose.infer.model import replay as command
"""
FILES = {
    "diagnose/face/cli/start.py": "def main():\n    from OURS.diagnose.face.cli.main import run\n",
    "diagnose/face/cli/main.py": MAIN,
    "diagnose/face/cli/record.py": "import OURS.probes.calls.probe as calls\n",
    "diagnose/face/cli/prune.py": "X = 1\n",
    "diagnose/infer/model/replay.py": "import importlib\nimportlib.import_module('OURS.diagnose.infer.model.steps')\n",
    "diagnose/infer/model/steps.py": "X = 1\n",
    "diagnose/infer/verdict/contract.py": "X = 1\n",
    "probes/base/room.py": "import json\n",
    "probes/calls/probe.py": "import pkgutil\nfrom OURS.probes import rows\n",
    "probes/calls/calls.bpf.c": "int x;\n",
    "probes/calls/README.md": "words\n",
    "probes/rows/first.py": "X = 1\n",
    "probes/other.py": "X = 1\n",
}  # fmt: skip


def _digest(command: str, tree: Path) -> str:
    """As in a process of its own, which has read nothing yet."""
    sources.parts_of.cache_clear()
    sources._modules.cache_clear()
    return of_command(command, (), tree)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A command line of three commands, and what they import."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).parent.joinpath("__init__.py").touch()
        (tmp_path / name).write_text(text.replace("OURS", PACKAGE))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "old", "new", "stale"),
    [
        ("diagnose/face/cli/main.py", "from typing", "import io\nfrom typing", {"record", "diagnose"}),
        ("diagnose/face/cli/main.py", 'name="prune"', 'name="prunes"', set()),
        ("diagnose/face/cli/main.py", "def record():", "def record(x):", {"record"}),
        ("diagnose/face/cli/prune.py", "1", "2", set()),
        ("diagnose/infer/model/steps.py", "1", "2", {"diagnose"}),
        ("diagnose/infer/verdict/contract.py", "1", "2", set()),
        ("probes/base/room.py", "json", "math", {"record", "diagnose"}),
        ("probes/base/room.py", "import json", 'import json\nTEXT = """a\n\nb"""', {"record", "diagnose"}),
        ("probes/base/room.py", "import json", "# why\n\nimport json  # of what", set()),
        ("probes/calls/calls.bpf.c", "x", "y", {"record"}),
        ("probes/calls/README.md", "words", "more words", set()),
        ("probes/calls/__init__.py", "", "X = 1\n", {"record"}),
        ("probes/rows/first.py", "1", "2", {"record"}),
        ("probes/rows/second.py", "", "X = 1\n", {"record"}),
        ("probes/other.py", "1", "2", set()),
    ],
)
def test_a_result_is_worth_something_for_what_its_command_imports(
    tree: Path, name: str, old: str, new: str, stale: set[str]
) -> None:
    before = {command: _digest(command, tree) for command in ("record", "diagnose")}
    text = (tree / name).read_text() if (tree / name).exists() else ""
    assert old in text
    (tree / name).write_text(text.replace(old, new, 1))
    assert {command for command in before if before[command] != _digest(command, tree)} == stale


def test_of_the_commands_no_more_is_held_than_they_may_run() -> None:
    held = {one: parts_of(one) for one in ("record", "diagnose", "sweep", "watch")}
    for one, parts in held.items():
        ways_in = {part.name for part in parts[f"{PACKAGE}.diagnose.face.cli.main"]}
        assert not ways_in & {"prune", "compact", "bundle", "record", "diagnose"} - {one}
        assert not [name for name in parts if ".diagnose.face.export." in name or ".diagnose.face.top." in name]
    within = {one: {name.removeprefix(f"{PACKAGE}.") for name in parts} for one, parts in held.items()}
    assert not [
        name
        for name in within["record"]
        if name.startswith(("diagnose.infer.fleet.", "diagnose.infer.solve.", "diagnose.face.report."))
    ]
    assert "diagnose.face.report.render" not in within["diagnose"]
    assert not [
        name
        for name in within["sweep"]
        if name.startswith(("unwinder.walk.", "observer.live.", "diagnose.infer.model."))
    ]
    assert "diagnose.sweep.checks.disk_full" in within["sweep"] and "diagnose.sweep.peers" not in within["sweep"]
    assert "diagnose.service.service" in within["watch"] and "diagnose.service.service" not in within["record"]


def test_what_a_run_loads_is_held(tmp_path: Path) -> None:
    for window in build(Job(ranks=4, hosts=2, steps=30)):
        write_window(window, tmp_path / "windows")
    for one, arguments in (("sweep", ["--state", f"{tmp_path}/state"]), ("diagnose", [f"{tmp_path}/windows"])):
        ended = run_command([one, *arguments], Plan(tmp_path, environment=dict(PRINTS_IMPORTS)), 30.0)
        assert (
            ended.code in VERDICTS
            and f"rankscope.diagnose.face.cli.{'host.' if one == 'sweep' else ''}{one}" in ended.complained
        )
        assert missing(one, ended.complained) == []
        assert missing("record", ended.complained), "and what a fingerprint does not hold is seen"


def test_of_a_killed_command_it_is_told_what_it_was_doing() -> None:
    assert (
        Ended(-9, 1.0, "", "2 ranks found; loading kernel probes\nobserving 1 s\n", True, ()).last_words
        == "observing 1 s"
    )
    assert Ended(-9, 0.1, "", "", True, ()).last_words == "starting"
    assert Ended(69, 1.0, "x", "progress\n" + LINE, False, ()).last_words == "rankscope: Free space."
