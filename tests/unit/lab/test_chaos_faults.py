"""What scripts/chaos does to a host and its commands is really done, and what a command does to others is seen."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from builders import Job as Built
from builders import build as built

from campaignkit import sources
from campaignkit.chaos import case, command, leftovers, told, users
from campaignkit.chaos.campaign import Chaos, slowed
from campaignkit.chaos.case import LONGEST_GAP_S, MOST_SLOWER, disturbance, judge
from campaignkit.chaos.command import Ended, Plan, Whom
from campaignkit.chaos.faults import others, storms
from campaignkit.chaos.faults.kinds import KINDS
from campaignkit.chaos.job import PROGRAMS, build, build_program
from campaignkit.chaos.scene import Kind, Scene
from campaignkit.results import Result
from rankscope.observer.live.observation import children
from rankscope.observer.tables.cpu_rows import CpuTotals, CpuUse
from rankscope.observer.window.folder import Window, write_window
from rankscope.observer.window.manifest import Loss
from rankscope.observer.window.tables import table_of
from rankscope.probes.sched.probe import ProcessTimes

GOOD = Ended(0, 1.0, "out/window\n", "", killed=False, processes=())


class Stepping:
    """A job that takes steps of so many seconds until `changes`, and of `then_s` from there on; `dies` then."""

    def __init__(self, then_s: float, changes: float, *, dies: bool = False, ranks: int = 1) -> None:
        self.then_s, self.changes, self.dies = then_s, changes, dies
        self.ranks, self.pids = [None] * ranks, tuple(range(1, ranks + 1))

    def alive(self) -> bool:
        return not (self.dies and time.monotonic() > self.changes)

    def steps(self, rank: int) -> list[float]:
        found, at, now = [], self.changes - 70.0, time.monotonic()
        while at < now:
            found.append(at)
            at += 0.014 if at < self.changes else self.then_s
        return found


@pytest.mark.parametrize(
    ("other", "problems"),
    [
        ({"then_s": 0.014}, []),
        ({"then_s": 0.014 * 1.6}, []),
        ({"then_s": 0.7}, ["steps took 50.0 times as long"]),
        ({"then_s": 1.2}, ["1.2 s without a step", "steps took 85.7 times as long"]),
        ({"then_s": 0.014, "dies": True}, ["a rank ended"]),
    ],
)
def test_a_job_that_is_disturbed_is_seen_also_where_it_is_not_the_first(
    other: dict[str, float], problems: list[str]
) -> None:
    now = time.monotonic()
    usual, second = Stepping(0.014, now - 2.5), Stepping(changes=now - 2.5, **other)
    for jobs in ((second,), (usual, second)):
        _, _, wrong = disturbance(jobs, now - 2.9, now - 2.5, now)
        assert wrong == problems
    assert MOST_SLOWER <= 2.0 and LONGEST_GAP_S < 1.0


def test_what_a_fault_must_bring_about_and_other_jobs_are_judged_with_the_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Stepping(0.014, time.monotonic() + 60), Stepping(0.014, time.monotonic() + 0.8, dies=True)

    @contextmanager
    def hurt(scene: Scene) -> Iterator[Plan]:
        yield Plan(scene.folder, jobs=(second,), shown=lambda _: ["no map was full"])  # type: ignore[arg-type]

    asked: list[str] = []

    def run(arguments: list[str], plan: Plan, window_s: float) -> Ended:
        asked.extend(arguments)
        time.sleep(0.6)
        return GOOD

    monkeypatch.setattr(case, "run", run)
    monkeypatch.setattr(case.kernel, "held", lambda: None)
    monkeypatch.setattr(case.kernel, "left", lambda *_: [])
    monkeypatch.setattr(case.leftovers, "elsewhere", frozenset)
    result = judge(Kind("x", "", ("record",), hurt), 0, 0, first, 1.0, 1.0)  # type: ignore[arg-type]
    assert result.problems == ("no window was written", "no map was full", "a rank ended")
    assert asked.count("--pid") == 2


@pytest.mark.parametrize("code", [69, 0])
def test_a_command_that_always_refuses_is_not_good_where_nothing_keeps_it_from_a_verdict(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = Stepping(0.014, time.monotonic() + 60)
    ended = Ended(code, 0.5, "x\n", "rankscope: there is no room\n" if code else "", killed=False, processes=())
    monkeypatch.setattr(case, "run", lambda *_: time.sleep(0.1) or ended)
    monkeypatch.setattr(case.kernel, "held", lambda: None)
    monkeypatch.setattr(case.kernel, "left", lambda *_: [])
    monkeypatch.setattr(case.leftovers, "elsewhere", frozenset)
    found = {}
    for harmless in (False, True):
        kind = Kind("x", "", ("record",), KINDS[0].hurt, harmless)
        found[harmless] = judge(kind, 0, 0, job, 1.0, 1.0).problems  # type: ignore[arg-type]
    if code:
        assert found == {False: (), True: ("no verdict, and nothing kept it from one",)}
    else:
        assert found == dict.fromkeys((False, True), ("no window was written",))
    assert {kind.name for kind in KINDS if kind.harmless} >= {
        "nothing",
        "forks",
        "execs",
        "full-maps",
        "clock-back",
        "dead-disk",
    }


def test_a_kind_whose_cases_slow_the_job_a_little_each_is_bad_together() -> None:
    def rows(nothing: list[float], other: list[float]) -> dict[str, Result]:
        cases = {"nothing record-0": nothing, "other record-0": other[:3], "other diagnose-1": other[3:]}
        return {
            name: Result("chaos", name, "", "", "", len(one), series={"slower": one}) for name, one in cases.items()
        }

    usual, bad = [0.9, 1.02, 1.3] * 5, [1.2, 1.4, 1.6] * 5
    assert slowed(rows(usual, usual)) == []
    (said,) = slowed(rows(usual, bad))
    assert said.startswith("other: steps took 1.40 times as long") and "1.33 are allowed" in said
    assert len(slowed(rows(bad, bad))) == 1, "nothing is compared with none"
    assert slowed(rows(usual, bad[:9])) == []


def window_with(tmp_path: Path, losses: tuple[Loss, ...]) -> Window:
    (window,) = built(Built(ranks=2, steps=20))
    window = replace(window, manifest=replace(window.manifest, losses=losses))
    write_window(window, tmp_path / "out")
    return window


@pytest.mark.parametrize(
    ("losses", "said", "full"),
    [
        ((), "", False),
        ((Loss("bpf", "walk_failed", 3),), "", False),
        ((Loss("bpf", "thread_map_full", 0),), "", False),
        ((Loss("observer", "processes_without_room", 3),), "", True),
        ((), "  note   vm: 3 processes had no room in the kernel (observer,\n         processes_without_room)", True),
    ],
)
def test_a_map_counts_as_full_where_the_command_tells_what_was_lost(
    losses: tuple[Loss, ...], said: str, full: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    window_with(tmp_path, losses)
    monkeypatch.setattr(storms, "_BLOWN_S", 0.0)
    scene = SimpleNamespace(job=SimpleNamespace(tell=lambda _: None), folder=tmp_path, seed=0, command="record")
    with storms.full_maps(scene) as plan:  # type: ignore[arg-type]
        assert plan.by[-1] == "rs_targets=2" and plan.shown is not None
        assert plan.shown(replace(GOOD, said=said)) == ([] if full else ["no map was full (rs_targets=2)"])


def test_a_window_tells_whether_processes_of_a_storm_were_watched(tmp_path: Path) -> None:
    window = window_with(tmp_path, ())
    assert not told.workers(window)
    now = CpuTotals({}, {7: ProcessTimes(1.0, 0.0), 8: ProcessTimes(0.0, 0.0)}, {})
    (row,) = CpuUse(now, CpuTotals({}, {}, {}), {8: 7}).rows(3, 7, ())[2:]
    assert told.workers(replace(window, counters=table_of("counters", [row])))


@pytest.mark.parametrize("storm", ["forks", "execs", "churn"])
def test_a_storm_in_a_rank_starts_children_of_the_rank_itself_and_leaves_none(storm: str, tmp_path: Path) -> None:
    build_program("tick.c", tmp_path / "tick")
    text = (
        "import storm, sys, threading\nended = threading.Event()\n"
        "blowing = threading.Thread(target=storm.IN_THE_RANK[sys.argv[1]], args=(40, ended))\nblowing.start()\n"
        "sys.stdin.readline()\nended.set()\nblowing.join()\nprint('over', flush=True)\nsys.stdin.readline()\n"
    )
    rank = subprocess.Popen(
        [sys.executable, "-c", text, storm], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(PROGRAMS)}, text=True,
    )  # fmt: skip
    assert rank.stdin is not None and rank.stdout is not None
    try:
        end = time.monotonic() + 20
        while len(children(rank.pid)) < 5 and time.monotonic() < end:
            time.sleep(0.02)
        assert len(children(rank.pid)) >= 5
        rank.stdin.write("\n")
        rank.stdin.flush()
        assert rank.stdout.readline() == "over\n"
        assert children(rank.pid) == ()
    finally:
        rank.kill()
        rank.wait()


_WITH_A_CHILD = """#!/bin/sh
sleep 60 &
child=$!
trap 'exit 7' TERM
wait $child
echo "the child ended with $?"
"""


@pytest.mark.parametrize(
    ("whom", "killed", "code"), [(Whom.COMMAND, True, -9), (Whom.GROUP, True, -9), (Whom.CHILD, False, 0)]
)
def test_sigkill_hits_the_command_all_its_processes_or_one_that_it_started(
    whom: Whom, killed: bool, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "rankscope"
    program.write_text(_WITH_A_CHILD)
    program.chmod(0o755)
    monkeypatch.setattr(command, "rankscope", lambda: program)
    usual = command._left
    monkeypatch.setattr(command, "_left", lambda session: usual(session, 0.3))
    ended = command.run([], Plan(tmp_path, signal_after_s=1.0, signal=signal.SIGKILL, whom=whom), 1.0)
    assert (ended.killed, ended.code) == (killed, code)
    assert ended.processes == (("sleep",) if whom is Whom.COMMAND else ())
    if whom is Whom.CHILD:
        assert ended.said == f"the child ended with {128 + signal.SIGKILL}\n"


def test_of_four_moments_of_sigkill_two_hit_the_command_one_a_child_one_all() -> None:
    kind = next(kind for kind in KINDS if kind.name == "killed")
    scene = SimpleNamespace(
        folder=Path("/"), moment=0.5, running_s=4.0, chance=SimpleNamespace(random=lambda: 0.0), command="record"
    )
    hit = []
    for seed in range(4):
        scene.seed = seed
        with kind.hurt(scene) as plan:  # type: ignore[arg-type]
            hit.append(plan.whom)
    assert sorted(one.value for one in hit) == ["child", "command", "command", "group"]


def test_the_clock_of_a_command_jumps_and_a_fork_that_may_open_nothing_counts_on(tmp_path: Path) -> None:
    library, count = build("clock.c", tmp_path / "clock.so"), tmp_path / "jumped"
    count.write_bytes(bytes(8))
    text = "import os, time\nprint(time.time(), flush=True)\nos.fork() or (time.time(), os._exit(0))\nos.wait()\n"
    told_s = []
    for at in (time.monotonic() + 1e6, 0.0):
        environment = {
            "LD_PRELOAD": str(library),
            "CHAOS_JUMP_AT": str(at),
            "CHAOS_JUMP_S": "-3600",
            "CHAOS_JUMPED": str(count),
        }
        done = subprocess.run(
            [sys.executable, "-S", "-c", text], capture_output=True, check=True, env=os.environ | environment
        )
        told_s.append((float(done.stdout) - time.time(), int.from_bytes(count.read_bytes(), "little")))
    assert abs(told_s[0][0]) < 60 and told_s[0][1] == 0
    assert abs(told_s[1][0] + 3600) < 60 and told_s[1][1] >= 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts processes in another group")
def test_what_a_command_leaves_wherever_it_is_is_seen_and_what_others_leave_is_not(tmp_path: Path) -> None:
    before = leftovers.elsewhere()
    place = Path(f"/dev/shm/chaos-test-{os.getpid()}")
    script = f"mkdir {place} && touch {place}/left"
    try:
        subprocess.run(["sh", "-c", script], check=True)
        assert leftovers.left(before, killed=False, patience_s=0.0) == []
        subprocess.run(["rm", "-r", place], check=True)
        subprocess.run(["sh", "-c", script], check=True, group=leftovers.GROUP)
        assert leftovers.left(before, killed=False, patience_s=0.0) == [f"left at {place}", f"left at {place}/left"]
    finally:
        subprocess.run(["rm", "-rf", place], check=True)
    assert leftovers.left(before, killed=False, patience_s=0.0) == []


def test_a_service_is_killed_itself_or_with_all_its_processes_and_asked_for_a_look_before() -> None:
    kind = next(kind for kind in KINDS if kind.name == "killed")
    scene = SimpleNamespace(
        folder=Path("/nowhere"), moment=0.5, running_s=10.0, chance=SimpleNamespace(random=lambda: 0.0), command="watch"
    )
    hit = []
    for seed in range(4):
        scene.seed = seed
        with kind.hurt(scene) as plan:  # type: ignore[arg-type]
            hit.append(plan.whom.value)
            assert plan.meanwhile is not None and plan.signal is signal.SIGKILL and plan.signal_after_s == 5.0
    assert sorted(hit) == ["command", "command", "command", "group"]


@pytest.mark.parametrize(
    ("trap", "code", "problems"), [("exit 0", 0, []), ("exit 130", 130, []), ("exit 70", 70, ["exit 70"])]
)
def test_a_command_that_is_told_to_end_may_end_as_ctrl_c_ends_it(
    trap: str, code: int, problems: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "rankscope"
    program.write_text(f"#!/bin/sh\ntrap '{trap}' TERM\nwhile :; do sleep 0.05; done\n")
    program.chmod(0o755)
    monkeypatch.setattr(command, "rankscope", lambda: program)
    ended = command.run([], Plan(tmp_path, signal_after_s=0.5), 0.1)
    assert (ended.code, ended.killed, ended.terminated) == (code, False, True)
    assert ended.problems(0.1) == problems
    assert replace(ended, terminated=False, code=130, said="x").problems(0.1) == ["exit 130"]


def test_a_slow_fork_is_bad_and_so_is_a_victim_that_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    probing = SimpleNamespace(longest_s=iter((9.0, 0.2, 9.0, 4.0)).__next__)
    for longest, problems in ((0.2, []), (4.0, ["a fork of the host took 4.00 s"])):
        plan = others._timing(Plan(tmp_path), probing, 1.0)  # type: ignore[arg-type]
        assert plan.shown is not None and plan.shown(GOOD) == problems
        assert plan.forks_s == [longest]
    traced = others._Traced(SimpleNamespace(pids=(os.getpid(),)))  # type: ignore[arg-type]
    traced.look()
    assert not traced.seen
    status = Path(f"/proc/{os.getpid()}/status").read_text().replace("TracerPid:\t0\n", "TracerPid:\t7\n")
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: status)
    traced._looked_s = 0.0
    traced.look()
    assert traced.seen


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts for other users")
def test_the_attacks_are_really_made() -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        folder.chmod(0o711)
        library = build("library.c", folder / "libtorch_cpu.so")
        offset = users.offset_of(library, others.PROBED)
        with users.mappings(folder, library, offset, 1), users.forks(folder) as probing:
            (pid,) = [path.name for path in Path("/proc").iterdir() if is_program(path, folder / "mapper")]
            assert Path(f"/proc/{pid}/maps").read_text().count(str(library)) >= users.MOST_MAPPINGS
            assert f"Uid:\t{users.SOMEBODY}\t" in Path(f"/proc/{pid}/status").read_text()
            time.sleep(0.2)
            assert 0 < probing.longest_s() < 5
        assert not Path(f"/proc/{pid}").exists()


def is_program(process: Path, path: Path) -> bool:
    try:
        return (process / "exe").readlink() == path
    except OSError:
        return False


def test_a_result_is_worth_something_for_the_fault_and_the_judge_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: dict[str, list[str]] = {}
    monkeypatch.setattr(
        sources, "of_command", lambda command, kit: kept.setdefault(command, sorted(one.name for one in kit)) and "x"
    )
    Chaos().sources(["disk-full record-0", "forks diagnose-1"])
    assert {"case.py", "leftovers.py", "rank.py", "clock.c"} <= set(kept["record"]) & set(kept["diagnose"])
    assert "disks.py" in kept["record"] and "disks.py" not in kept["diagnose"] and "storms.py" in kept["diagnose"]
    assert "campaign.py" not in kept["record"]
