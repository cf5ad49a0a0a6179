"""What commands print with --json, of windows, trees and states that tests make: real code, nothing observed.

One function for each schema (`PRINTED`): it gets an empty folder and returns documents as programs get them, the fullest first.
"""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import builders
import pytest
import stored
import sweep_trees as trees
from builders import Job, build, columns
from polled import Host
from rank_trees import PLAIN, Tree, torchrun

from rankscope.diagnose.face.cli.main import run
from rankscope.diagnose.face.cli.service import watch
from rankscope.diagnose.face.cli.service.top import _print_json as print_update
from rankscope.diagnose.face.top import from_watch
from rankscope.diagnose.face.top.from_windows import Scene
from rankscope.diagnose.face.top.snapshot import CounterNow
from rankscope.diagnose.infer.solve.judge import diagnose
from rankscope.diagnose.infer.verdict.as_json import to_json
from rankscope.diagnose.service import events
from rankscope.diagnose.service.alarms import Alarm, AlarmKind, Relief
from rankscope.diagnose.service.evidence import Evidence
from rankscope.diagnose.service.ledger.entry import Entry, Kind, Ledger, Scope
from rankscope.diagnose.service.ledger.store import Store
from rankscope.diagnose.service.looks.look import Seen
from rankscope.diagnose.service.place import WatchPlace
from rankscope.diagnose.service.sick import Sickness
from rankscope.diagnose.service.tell.hooks import Hooks
from rankscope.diagnose.service.voice import Voice
from rankscope.diagnose.service.xid_events import XidEvents
from rankscope.diagnose.severity import CRITICAL, OK, WARNING
from rankscope.observer import doctor, recorder, sight
from rankscope.observer.doctor import Requirement
from rankscope.observer.recorder import Recorded
from rankscope.observer.sources import Seen as SourceSeen
from rankscope.observer.sources import Source, SourceState
from rankscope.observer.watch.blackbox import BlackBox
from rankscope.observer.window.folder import write_window
from rankscope.probes.gpu.xid import LoggedXid

Make = Callable[[Path, pytest.MonkeyPatch], list[Any]]
HANG = Job(**{**builders.stopped(5).__dict__, "name": "job-hung"})
SLOW = builders.slow_python(3, 0.08, hosts=2)
JOB, USER = "torch-a:29500", "user 1000"


def said(*arguments: str, codes: tuple[int, ...] = (0,)) -> Any:
    """What a command prints, as its reader takes it in; it must end with one of these codes."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        code = run(list(arguments))
    assert code in codes, (code, out.getvalue()[-400:])
    return json.loads(out.getvalue(), parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def windows(folder: Path, *jobs: Job) -> str:
    for job in jobs:
        for window in build(job):
            write_window(window, folder)
    return str(folder)


def verdicts(folder: Path, _: pytest.MonkeyPatch) -> list[Any]:
    """Two jobs at once; each outcome; timings that somebody else measured; a baseline."""
    both = said("diagnose", windows(folder / "both", HANG, SLOW), "--json", codes=(2,))
    assert (both["status"], [one["status"] for one in both["other_jobs"]]) == ("hang", ["fault"])
    earlier = windows(folder / "earlier", Job(hosts=2, start=1_759_990_000.0))
    compared = said(
        "diagnose", windows(folder / "one", SLOW), "--baseline", earlier, "--json", "--no-history", codes=(1,)
    )
    assert compared["baseline"]["windows"] == 2
    timings = folder / "timings.csv"
    rows = [
        f"{rank},{step},{name},{kind},{seconds + (0.05 if (rank, name) == (2, 'load') else 0)}"
        for step in range(40) for rank in range(4)
        for name, kind, seconds in (("load", "io", 0.02), ("forward", "gpu", 0.1), ("odd", "strange", 0.01))
    ]  # fmt: skip
    timings.write_text("\n".join(["rank,step,function,kind,seconds", *rows]))
    timed = said("diagnose", "--steps", str(timings), "--json", codes=(0, 1, 3))
    page = str(folder / "page.html")
    paged = said("report", str(folder / "one"), "--html", page, "--json", codes=(1,))
    others = (Job(), builders.hogged(3, 0.08), builders.throttled(3, 0.08), builders.slow_read(3, 0.08),
              builders.slow_link(1, 0.1), Job(scale={2: 1.6}), Job(steps=3), Job(ranks=1))  # fmt: skip
    return [both, compared, timed, paged, *(json.loads(to_json(diagnose(build(job)))) for job in others)]


def record(folder: Path, patch: pytest.MonkeyPatch) -> list[Any]:
    (window,) = build(Job())
    patch.setattr(recorder, "record", lambda options, say: [Recorded(window, write_window(window, options.out))])
    return [said("record", "--out", str(folder / "out"), "--json")]


def found_by_doctor(_: Path, patch: pytest.MonkeyPatch) -> list[Any]:
    states = (
        SourceState(Source.SAMPLES),
        SourceState(Source.FLOWS, SourceSeen.NOT, "no such file"),
        SourceState(Source.GPU, SourceSeen.PART, "NVML has no such counter"),
    )
    findings = [
        Requirement("machine", True, "x86_64", "Only x86_64 is supported so far.", True),
        Requirement("tracefs", False, "not mounted", "mount -t tracefs none /sys/kernel/tracing", True),
        Requirement("lockdown", None, "could not be examined: Permission denied", "", False),
        Requirement("probes", True, "attached", "", True, states),
    ]
    patch.setattr(doctor, "examine", lambda root: tuple(findings))
    lacks = said("doctor", "--json", codes=(69,))
    del findings[1]
    return [lacks, said("doctor", "--json")]


def ranks(folder: Path, patch: pytest.MonkeyPatch) -> list[Any]:
    tree = Tree(folder)
    tree.process(100, 1, "pt_elastic", ["python3.11", "/venv/bin/torchrun", "train.py"])
    for rank in (0, 1):
        tree.process(101 + rank, 100, "python3.11", ["python3.11", "train.py"], torchrun(rank, rank))
    tree.process(110, 1, "python3.11", ["python3.11", "serve.py"])
    tree.process(111, 1, "bash", ["bash"], mapped=PLAIN)
    patch.setattr(sight, "see", lambda **_: sight._see(folder))
    return [said("ranks", "--json")]


def causes(_: Path, __: pytest.MonkeyPatch) -> list[Any]:
    return [said("causes", "--json")]


def tidied(folder: Path, _: pytest.MonkeyPatch) -> list[Any]:
    folder.chmod(0o700)
    stored.send((folder / "store").as_uri(), *stored.windows(2))
    (folder / "store/left.txt").write_text("no window")
    put_together = said("compact", str(folder / "store"), "--json")
    return [put_together, said("prune", str(folder / "store"), "--older-than", "1", "--dry-run", "--json")]


def reputation(folder: Path, _: pytest.MonkeyPatch) -> list[Any]:
    place = windows(folder / "windows", Job(ranks=8, hosts=8, start=time.time() - 3600))
    told = said("reputation", place, "--keep", str(folder / "book"), "--json", codes=(0, 1))
    assert told["new_votes"] == len(told["components"]) == 8
    return [told]


def export(folder: Path, _: pytest.MonkeyPatch) -> list[Any]:
    place = windows(folder / "windows", SLOW)
    return [
        said("export", place, "--to", form, "--out", str(folder / form), "--json")
        for form in ("csv", "pprof", "folded", "speedscope", "perfetto")
    ]


def bundle(folder: Path, _: pytest.MonkeyPatch) -> list[Any]:
    place = windows(folder / "windows", SLOW)
    kept = said("bundle", place, "--out", str(folder / "a"), "--keep-names", "--json")
    return [said("bundle", place, "--out", str(folder / "b"), "--key", str(folder / "key"), "--json"), kept]


# ---- the service -----------------------------------------------------------------------------------------------------


def spoken() -> Iterator[events.Event]:
    """Events of each kind, as the parts of the service make them."""
    now, told = time.monotonic(), list[events.Event]()
    voice = Voice(told.append, lambda _: None, lambda job: USER)
    alarms = [Alarm(kind, JOB, now, "0.104 → 0.154 s/step", (3,)) for kind in AlarmKind]
    for alarm, why in zip(alarms, ["", "no more than 3 windows an hour"] * 4, strict=True):
        voice.say(events.of_alarm(alarm, time.time(), why))
    for job in (SLOW, HANG, Job()):
        verdict = json.loads(to_json(diagnose(build(job))))
        voice.say(events.of_look(Seen(alarms[0], verdict, "", 2.0, 31.5, "20260101T000000Z"), time.time()))
    voice.say(events.of_look(Seen(alarms[0], verdict, "", -2.0, judged_by="node-1"), time.time()))
    voice.say(events.of_look(Seen(alarms[1], None, "no rank here", None), time.time()))
    for before, after, named in ((0.154, 0.104, "tokenize"), (None, None, "")):
        relief = Relief(AlarmKind.SLOWER, JOB, now - 60, now, "0.154 → 0.104 s/step", before, after)
        voice.say(events.of_relief(relief, time.time(), time.time() - 60, named))
    for kind, words in (("job", "ranks 0-1 of 2, train.py"), ("gone", "no rank of it is left here"), ("note", "said")):
        voice.note(now, kind, words, JOB)
    yield from told
    yield events.Event("started", time.time(), "watching")
    yield events.Event("ended", time.time(), "no longer watching; nothing was left behind")
    yield events.Event("hardware", time.time(), "the sweep of this host: gpu.lost", state=CRITICAL)
    for state in (CRITICAL, WARNING, OK):
        one = Sickness("mlx5_3 has no link", state, "nic", "down", "mlx5_3")
        details = {"component": one.component, "cause": one.cause, "instance": one.instance}
        yield events.Event(
            "hardware", time.time(), one.words, "", state, details, ("", one.drain) if one.drain else None
        )
    xids = XidEvents()
    yield from xids.of([LoggedXid("0000:3b:00.0", number, now) for number in (79, 31, 31)], now)


def watch_lines(folder: Path, _: pytest.MonkeyPatch) -> list[Any]:
    """Lines that the service prints; those of its log are the same."""
    folder.chmod(0o700)
    place, out = WatchPlace(folder / "state"), io.StringIO()
    with contextlib.redirect_stdout(out), place.held():
        speaker = watch._Speaker(place, Hooks("", place.owed), True)
        for event in spoken():
            speaker.say(event)
        speaker.close()
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines == [json.loads(line) for line in (place.folder / "events.jsonl").read_text().splitlines()]
    assert len({one["kind"] for one in lines}) == 9
    return lines


def box_of(folder: Path, patch: pytest.MonkeyPatch) -> BlackBox:
    """A black box with a minute of two ranks, one of them stopped."""
    folder.chmod(0o700)
    box = BlackBox(folder / "state/blackbox")
    host = Host(folder / "root", patch)
    beat = host.poll()
    host.calls(0, 0.2, 100)
    host.state(102, "T")
    beat = host.poll()
    evidence = Evidence(host.tier, box, cast(Any, None), None, lambda *_: None, None, None)
    watched = SimpleNamespace(
        title="train.py", watch=SimpleNamespace(step_s=0.2), named="", troubles={AlarmKind.STOPPED}
    )
    for second in range(3):
        box.append(evidence._box_line("job", cast(Any, watched), beat), time.time() + 5 * second, USER)
    patch.undo()
    return box


def frozen(folder: Path, patch: pytest.MonkeyPatch) -> tuple[str, Path]:
    box = box_of(folder, patch)
    of_kind = {event.kind: event.as_json("node-1") for event in spoken()}
    place = box.freeze("job", of_kind["alarm"], time.time(), USER)
    box.add(place, "verdict.json", json.dumps(of_kind["verdict"]).encode())
    return str(folder / "state"), place


def blackbox_list(folder: Path, patch: pytest.MonkeyPatch) -> list[Any]:
    state, place = frozen(folder, patch)
    told = said("blackbox", "--state", state, "--json")
    (place / "why.json").write_text("{")
    return [told, said("blackbox", "--state", state, "--json")]


def blackbox(folder: Path, patch: pytest.MonkeyPatch) -> list[Any]:
    state, place = frozen(folder, patch)
    told = said("blackbox", place.name, "--state", state, "--json")
    assert len(told["lines"]) == 3 and told["verdict"]
    return [told, said("blackbox", "now", "--state", state, "--json")]


def ledger(folder: Path, _: pytest.MonkeyPatch) -> list[Any]:
    folder.chmod(0o700)
    begin = time.time() - 7200.0
    recent = tuple((begin + 300.0 * each, 300 * each) for each in range(1, 9))
    entries = (
        Entry(Kind.GC, "", Scope.SOME, 8, 11.2, 1.5, begin + 300, begin + 2400, ((3, 8),), 1, recent, 1, 1, 0),
        Entry(Kind.CHECKPOINT, "save (train.py:9)", Scope.ALL, 2, 900.0, 500.0, begin + 60, begin + 90, wrote=2),
        Entry(Kind.DOWN, "SIGKILL", Scope.UNKNOWN, 1, 60.0, 60.0, begin + 4000, begin + 4000),
    )
    one = Ledger(JOB, USER, "train.py", 8, 4, True, begin, begin + 7200.0, 6000.0, 6000, 1.0, 2, entries, (1, 2.0), "",
                 ((101, 7000),), 5000, 3000)  # fmt: skip
    store = Store(folder / "ledger", "node-1")
    store.write(one)
    store.write(Ledger("j", USER, "", 1, 1, False, begin, begin + 1.0, ended="asked to end"))
    return [sorted(said("ledger", "--state", str(folder), "--json"), key=lambda each: -each["steps"])]


def top(folder: Path, _: pytest.MonkeyPatch) -> list[Any]:
    """Updates from windows (with a suspect, with no step) and from what the service keeps."""
    scene = Scene("windows of 5 s, observed here")
    (slow,), (hung,), (empty,) = build(builders.slow_python(3, 0.08)), build(HANG), build(Job(name="job-b"))
    shown = [scene.take(window) for window in (slow, columns(empty, "steps", []), hung)]
    now = time.time()
    rows = [{"rank": rank, "pid": 10, "silent_s": 0.1, "steps_s": [0.2, 0.21], "waited": 0.6} for rank in (0, 1)]
    line = {"time": now, "job": JOB, "title": "train.py", "usual_s": 0.15, "troubles": ["slower"], "ranks": rows}
    counters = (CounterNow("memory pressure", "12 %", True),)
    for named in ("", "python/slow-function tokenize (train.py:14) on rank 1"):
        shown.append(from_watch.snapshot_of([{**line, "named": named}], counters, "node-1", now))
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        for snapshot in shown:
            print_update(snapshot)
    lines = [json.loads(each) for each in out.getvalue().splitlines()]
    return sorted(lines, key=lambda each: -len(json.dumps(each)))


# ---- sweeps ----------------------------------------------------------------------------------------------------------


def swept(folder: Path, *more: str, codes: tuple[int, ...] = (0,)) -> Any:
    return said("sweep", "--root", str(folder / "root"), "--state", str(folder / "state"), "--json", *more, codes=codes)


def sweep(folder: Path, _: pytest.MonkeyPatch) -> list[Any]:
    trees.host(folder / "root")
    well = swept(folder)
    (folder / "now.toml").write_text("[sweep]\nconfirm_s = 0\n")
    wrong = {"dev/kmsg": "3,1,7,-;Kernel panic - not syncing: x\n", "proc/vmstat": "oom_kill 4\n",
             "proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 9 kB\n"}  # fmt: skip
    trees.put(folder / "root", {**wrong, **trees.ib("mlx5_0", "1: DOWN")})
    (folder / "root/proc/stat").unlink()
    sick = swept(folder, "--config", str(folder / "now.toml"), codes=(2,))
    return [sick, well]


def sweep_comparison(folder: Path, _: pytest.MonkeyPatch) -> list[Any]:
    (folder / "all").mkdir()
    for number in range(5):
        place = folder / str(number)
        trees.host(place / "root", {"proc/sys/kernel/hostname": f"node-{number}\n"})
        if number == 2:
            trees.put(place / "root", {"proc/sys/kernel/osrelease": "5.15.0\n"})
        if number == 3:
            (place / "root/proc/stat").unlink()  # a check that cannot be made
        (folder / f"all/{number}.json").write_text(json.dumps(swept(place, codes=(3,) if number == 3 else (0,))))
    (folder / "all/broken.json").write_text("{")
    told = said("sweep", str(folder / "all"), "--json", codes=(1,))
    assert [one["host"] for one in told["odd"]] == ["node-2"]
    assert [bool(one["wrong"]) for one in told["hosts"]] == [False, False, False, True, False]
    return [told]


def sweep_checks(_: Path, __: pytest.MonkeyPatch) -> list[Any]:
    return [said("sweep", "--list", "--json")]


PRINTED: dict[str, Make] = {
    "verdict": verdicts, "record": record, "doctor": found_by_doctor, "ranks": ranks, "causes": causes, "tidied": tidied,
    "reputation": reputation, "export": export, "bundle": bundle, "watch": watch_lines, "blackbox-list": blackbox_list,
    "blackbox": blackbox, "ledger": ledger, "top": top, "sweep": sweep, "sweep-comparison": sweep_comparison,
    "sweep-checks": sweep_checks,
}  # fmt: skip
