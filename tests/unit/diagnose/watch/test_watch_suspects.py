"""Metrics that name the culprit: bounded in number, cleaned, and gone with their job."""

from __future__ import annotations

import math
import subprocess
from pathlib import Path

from installed import PROMTOOL
from watched_host import OWN, Host, suspect, verdict

from rankscope.diagnose.service.alarms import Alarm, AlarmKind, JobWatch, Relief
from rankscope.diagnose.service.jobs import WatchedJob
from rankscope.diagnose.service.limits import Allowance
from rankscope.diagnose.service.tell.metrics import SUSPECTS_EACH, SUSPECTS_MOST
from rankscope.diagnose.service.tell.suspects import SUSPECTS_MOST as AT_ONCE
from rankscope.diagnose.service.tell.suspects import of_verdict

THE_LINK = (
    '{training_job="job",status="fault",component="network",cause="slow-link",rank="3",host="host-3",device="eth0"}'
)


def test_who_costs_how_much_of_a_step_is_in_the_metrics_until_it_is_over() -> None:
    host = Host("job")
    assert host.written() == {}
    host.sees(verdict("fault", suspect()))
    assert host.written() == {THE_LINK: 1.0}
    assert host.written("rankscope_suspect_lost_seconds_per_step") == {THE_LINK: 0.036}
    assert host.written("rankscope_suspect_lost_ratio") == {THE_LINK: 0.16}
    assert host.written("rankscope_job_named") == {'{training_job="job"}': 1.0}
    # what could not be judged says nothing of it; a healthy window, a relief and a new start do
    host.sees(verdict("unknown"))
    assert host.written() == {THE_LINK: 1.0}
    for over in (
        lambda: host.sees(verdict("healthy")),
        lambda: host.jobs["job"].relieved(Relief(AlarmKind.SLOWER, "job", 0.0, 1.0, "")),
        host.jobs["job"].started_again,
    ):
        host.sees(verdict("fault", suspect()))
        over()
        assert host.written() == {} and host.written("rankscope_job_named") == {'{training_job="job"}': 0.0}
    host.jobs["job"].raised(Alarm(AlarmKind.SLOWER, "job", 0.0, ""))
    host.sees(verdict("fault", suspect()))
    host.sees(verdict("healthy"))
    assert host.written() == {THE_LINK: 1.0}, "it is slow yet, by its own steps"
    del host.jobs["job"]
    assert host.written() == {}


def test_one_host_of_a_cluster_has_the_series_of_a_suspect_and_a_waste_names_nobody() -> None:
    host = Host("job")
    host.sees(verdict("fault", suspect()), judged_by="host-9")
    assert host.written() == {} and host.written("rankscope_job_named") == {'{training_job="job"}': 1.0}
    host.sees(verdict("inefficient", suspect(component="python", cause="gc", instances=[], ranks=[0, 1, 2, 3, 9])))
    ((labels, _),) = host.written().items()
    assert 'status="inefficient"' in labels and 'rank="0-3, 9"' in labels and 'device=""' in labels
    assert host.written("rankscope_job_named") == {'{training_job="job"}': 0.0}


def test_a_standstill_has_a_culprit_and_no_seconds_per_step_and_a_death_outlasts_its_job() -> None:
    host = Host("job")
    host.sees(verdict("hang", suspect(component="process", cause="deadlock", lost_seconds_per_step=30.0)))
    assert list(host.written()) == [
        '{training_job="job",status="hang",component="process",cause="deadlock",rank="3",host="host-3",device=""}'
    ]
    assert host.written("rankscope_suspect_lost_seconds_per_step") == {} and host.jobs["job"].lost_s == 0.0
    exited = of_verdict(verdict("hang", suspect(component="process", cause="exited")))
    assert [one.status for one in exited] == ["dead"]
    # WHEN a rank dies and its job is gone in the same round THEN both are told for a quarter of an hour
    host.looking.alarm(
        host.jobs["job"], Alarm(AlarmKind.DEAD, "job", host.now_s, "rank 1 killed by SIGKILL", (1,)), host.now_s
    )
    assert host.jobs["job"].named == "rank 1 killed by SIGKILL"
    del host.jobs["job"]
    assert host.written("rankscope_job_dead") == {'{training_job="job"}': 1.0}
    assert list(host.written()) == [
        '{training_job="job",status="dead",component="process",cause="exited",rank="1",host="here",device=""}'
    ]
    assert host.written("rankscope_job_dead", 600.0) != {} and host.written("rankscope_job_hung") == {}
    assert host.written("rankscope_job_dead", 200.0) == host.written() == {}


def test_names_of_others_break_out_of_nothing_and_unknown_words_are_no_labels(tmp_path: Path) -> None:
    host = Host("job")
    evil = 'x"} 1\nforged{a="\\' + "\x1b[31m\u202e" + "y" * 500
    host.sees(verdict("fault", suspect(host=evil, instances=[{"name": evil}], component="nic", cause="down")))
    ((labels, value),) = host.written().items()
    assert value == 1.0 and len(labels) < 500 and not any(mark in host.text for mark in ("\x1b", "\u202e"))
    assert not any(line.startswith("forged") for line in host.text.splitlines())
    for wrong in ({"component": evil}, {"cause": evil}, {"cause": "Slow"}):
        assert of_verdict(verdict("fault", suspect(**wrong))) == ()
    assert of_verdict(verdict(evil, suspect())) == ()
    (odd,) = of_verdict(verdict("fault", suspect(lost_seconds_per_step=None, lost_percent=None, ranks=[])))
    assert math.isnan(odd.lost_s) and odd.rank == ""
    if PROMTOOL is not None:
        said = subprocess.run(
            [PROMTOOL, "check", "metrics"], input=host.text, text=True, capture_output=True, check=False
        )
        assert said.returncode == 0, said.stdout + said.stderr


def test_a_hostile_user_adds_only_so_many_series_a_day() -> None:
    # GIVEN a job whose verdicts name somebody else each time, more of them at once than are shown
    host, theirs = Host("job"), set[str]()
    for at in range(300):
        host.sees(verdict("fault", *(suspect(ranks=[AT_ONCE * at + more]) for more in range(9))))
        shown = host.written(after_s=20.0)
        assert len(shown) <= AT_ONCE
        theirs |= shown.keys()
    assert len(theirs) == SUSPECTS_EACH and host.written("rankscope_job_named") == {'{training_job="job"}': 1.0}
    # THEN others have theirs, and he too on the next day
    host.jobs["ours"] = WatchedJob(JobWatch("ours"), "ours", Allowance(), "user 7")
    host.sees(verdict("fault", suspect()), job="ours")
    assert len(host.written()) == 1
    host.sees(verdict("fault", suspect(ranks=[77777])))
    assert len(host.written(after_s=90_000.0)) == 2
    assert SUSPECTS_MOST >= 4 * SUSPECTS_EACH
    # and no job is left in the file when nobody watches them any more
    host.evidence.close(lambda: OWN)
    assert "training_job" not in host.text and "rankscope_watch_last_round_timestamp_seconds 1800000000" in host.text
