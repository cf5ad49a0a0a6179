"""Windows for the ledger: what they see of pauses, when one begins, what is said of it, and what Prometheus gets."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import builders
import pyarrow as pa
import pytest

from rankscope.diagnose.service.alarms import Alarm, AlarmKind, JobWatch
from rankscope.diagnose.service.events import Event
from rankscope.diagnose.service.jobs import WatchedJob
from rankscope.diagnose.service.ledger.entry import Kind
from rankscope.diagnose.service.ledger.naming import SeenPause
from rankscope.diagnose.service.limits import Allowance
from rankscope.diagnose.service.looks import pauses_seen
from rankscope.diagnose.service.looks.look import Seen, Wanted
from rankscope.diagnose.service.looks.looking import Looking
from rankscope.diagnose.service.tell.metrics import JOBS_MOST, JobState, RankState, ServiceState, as_prometheus
from rankscope.diagnose.service.voice import Voice
from rankscope.observer.window.rows import PauseRow
from rankscope.observer.window.tables import table_of

VERDICT = {"status": "fault", "suspects": [], "notes": []}


def test_a_window_s_pauses_have_their_functions_and_times() -> None:
    (window,) = builders.build(builders.Job())
    row = {
        "rank": 1, "name": "save", "file": "/job/train.py", "line": 12, "inside": "torch.save", "more": False, "count": 2,
        "total_s": 6.0, "p50_s": 3.0, "max_s": 3.1, "wait_s": 0.0, "steps": [2, 5, 10_000],
    }  # fmt: skip
    waits = row | {"rank": 0, "wait_s": 5.9, "inside": ""}
    window = replace(window, pauses=table_of("pauses", [PauseRow(**row), PauseRow(**waits)]))
    found = pauses_seen.from_json(pauses_seen.as_json(pauses_seen.seen_in(window)))
    begins = [one["start_s"] for one in window.steps.to_pylist() if one["rank"] == 1 and one["step"] in (2, 5)]
    (saved,) = [one for one in found if one.rank == 1]
    assert saved.at == pytest.approx([window.manifest.start + each for each in begins])
    assert (saved.kind, saved.what) == (Kind.CHECKPOINT, "save (train.py:12), in its call of torch.save")
    assert [one.waits for one in found] == [False, True]


def test_of_long_steps_the_activity_that_stands_out_is_the_pause() -> None:
    (window,) = builders.build(builders.Job())
    rows = window.patterns.to_pylist()
    python = [row for row in rows if row["kind"] == "python" and row["thread"] == "training" and row["file"]]
    python[0] |= {"max_s": 100 * python[0]["p50_s"], "count": 20}
    window = replace(window, patterns=pa.Table.from_pylist(rows, schema=window.patterns.schema))
    assert window.pauses.num_rows == 0
    found = pauses_seen.seen_in(window)
    assert found[0].name == python[0]["name"] and found[0].rank == python[0]["rank"]


@pytest.mark.parametrize(
    ("name", "file", "inside", "kind"),
    [
        ("gc", "", "", Kind.GC),
        ("main", "/job/train.py", "_next_data", Kind.LOADER),
        ("fetch", "/lib/torch/utils/data/_utils/fetch.py", "", Kind.LOADER),
        ("Trainer.save_checkpoint", "/lib/trainer.py", "", Kind.CHECKPOINT),
        ("main", "/job/train.py", "torch.save", Kind.CHECKPOINT),
        ("Trainer.evaluation_loop", "/lib/trainer.py", "", Kind.EVALUATION),
        ("validate", "/job/train.py", "", Kind.EVALUATION),
        ("saveModel", "/job/train.py", "", Kind.CHECKPOINT),
        ("compact", "/job/train.py", "", Kind.PAUSE),
        ("saved_tensors_retrieval", "/job/retrieval.py", "", Kind.PAUSE),
    ],
)
def test_a_pause_is_of_its_kind_by_the_names_of_its_functions(name: str, file: str, inside: str, kind: Kind) -> None:
    assert SeenPause(0, name, file, 3, inside, (), 1.0).kind is kind


class Looks:
    """Stands by; what was looked at."""

    def __init__(self) -> None:
        self.wanted: list[Wanted] = []
        self.ready = True
        self.kept: list[list[str]] = []

    def is_ready(self, *_: Any) -> bool:
        return self.ready

    def is_refused(self, _: frozenset[int]) -> bool:
        return False

    def keep(self, _: dict[str, frozenset[int]], agreed: list[str]) -> None:
        self.kept.append(agreed)

    def begin(self, wanted: Wanted, _: frozenset[int]) -> SimpleNamespace:
        self.wanted.append(wanted)
        return SimpleNamespace(done=lambda: Seen(wanted.alarm, VERDICT, "", 0.1), alarm=wanted.alarm)


def test_a_window_for_a_pause_leaves_one_to_alarms_and_pages_nobody(tmp_path: Path) -> None:
    job = WatchedJob(JobWatch("job"), "train.py", Allowance(), "user 1000")
    tier0 = SimpleNamespace(of_job=lambda _: [SimpleNamespace(found=SimpleNamespace(pid=1))])
    events, learnt, looks = list[Event](), list[Seen](), Looks()

    def learn(seen: Seen) -> str:
        learnt.append(seen)
        return "a pause that recurs: gc"

    looking = Looking(
        cast(Any, tier0), Voice(events.append, lambda _: None), cast(Any, None), {"job": job}, tmp_path, None, False, None,
        cast(Any, looks), learn,
    )  # fmt: skip
    expected = Alarm(AlarmKind.PAUSE, "job", 130.0, "expected", seconds=7.5)
    looks.ready = False
    assert not looking.expect(job, expected, 125.0) and looks.kept == [["job"]], "one that loads first would be late"
    looks.ready = True
    assert looking.expect(job, expected, 125.0) and looks.wanted[0].seconds == 7.5
    assert not looking.expect(job, expected, 126.0), "one look at a time"
    looking.go_on(140.0)
    assert [(event.kind, event.state, event.words) for event in events] == [("note", "ok", "a pause that recurs: gc")]
    assert learnt[0].alarm == expected and job.named == "" and job.alarms == {}
    assert looking.expect(job, expected, 150.0)
    looking.go_on(160.0)
    assert not looking.expect(job, expected, 170.0), "the third of this hour is for an alarm"
    assert job.allowance.allows(170.0) == ""
    assert looking.expect(job, expected, 125.0 + 3601.0)
    looking.go_on(3800.0)
    job.troubles.add(AlarmKind.SLOWER)
    assert not looking.expect(job, expected, 9000.0), "nothing else is wrong meanwhile"


def test_prometheus_gets_two_series_for_each_kind_of_so_many_jobs() -> None:
    hours = {kind.value: (10.0, 2) for kind in Kind}
    ranks = [RankState(0, True, False, 0.5, math.nan)]
    jobs = [
        JobState(f"job {at}", ranks, 0.1, 0.1, 7, False, False, False, {}, 1, 0.0, "user 1000", ledger=hours)
        for at in range(3 * JOBS_MOST)
    ]
    text = as_prometheus(jobs, ServiceState(1.5, 1 << 20, 0.1, 0))
    lines = [line for line in text.splitlines() if line.startswith("rankscope_job_ledger_")]
    assert len(lines) == 2 * len(Kind) * JOBS_MOST
    assert 'rankscope_job_ledger_seconds{training_job="job 0",kind="gc"} 10' in lines
    assert 'rankscope_job_ledger_events{training_job="job 0",kind="hang"} 2' in lines
