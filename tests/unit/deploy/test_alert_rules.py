"""The alert rules fire for what they are for, name the culprit, and are silent else: run by promtool."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from installed import PROMTOOL
from sweep_trees import DEPLOY

yaml = pytest.importorskip("yaml")
pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (scripts/setup --lab fetches it)")

NODE, NASTY = "node12.rack-3.example:9100", r"a\"b\\c{{x}}"  # as a series writes it
JOB = f'instance="{NODE}",training_job="{NASTY}"'
WHO = 'status="{}",component="network",cause="slow-link",rank="3",host="host-3",device="eth0"'
CLEAN = NASTY.replace('\\"', '"').replace("\\\\", "\\")


def series(name: str, values: str, more: str = "", job: str = JOB) -> dict[str, str]:
    return {"series": f"{name}{{{job}{',' if job and more else ''}{more}}}", "values": values}


def alerts(tmp_path: Path, given: list[dict[str, str]], at: str, **wanted: str) -> None:
    """Check that at this time these alerts fire (name: what their annotations hold), and no others."""
    rules = [str(path) for path in sorted((DEPLOY / "prometheus").glob("*.yaml"))]
    names = [rule["alert"] for path in rules for group in yaml.safe_load(Path(path).read_text())["groups"]
             for rule in group["rules"]]  # fmt: skip
    assert wanted.keys() <= set(names)
    # promtool compares whole annotations: what it got is read from what it says of none
    test = {"rule_files": rules, "evaluation_interval": "1m", "tests": [{
        "interval": "1m", "input_series": given,
        "alert_rule_test": [{"eval_time": at, "alertname": name, "exp_alerts": []} for name in names],
    }]}  # fmt: skip
    (tmp_path / "test.yaml").write_text(yaml.safe_dump(test))
    said = subprocess.run([str(PROMTOOL), "test", "rules", "test.yaml"], cwd=tmp_path, capture_output=True, text=True,
                          check=False)  # fmt: skip
    output = said.stdout + said.stderr
    assert "error" not in output.lower().replace("errors", ""), output
    fired = {name: part for name in names for part in output.split("alertname: ") if part.startswith(f"{name},")}
    assert fired.keys() == wanted.keys(), output
    for name, words in wanted.items():
        flat = " ".join(fired[name].replace('\\"', '"').replace("\\\\", "\\").replace("\\n", " ").split())
        assert words in flat, (words, flat)


def named(status: str) -> list[dict[str, str]]:
    return [
        series("rankscope_suspect", "1x60", WHO.format(status)),
        series("rankscope_suspect_lost_ratio", "0.16x60", WHO.format(status)),
        series("rankscope_job_named", "1x60"),
        series("rankscope_job_dead", "0x60"),
    ]


@pytest.mark.parametrize(
    ("slow", "status", "wanted"),
    [
        ("0x60", "fault", {"RankscopeJobSlowFromStart": "loses 16% of each step to network/slow-link eth0 on rank 3 of host-3"}),
        ("1x60", "fault", {"RankscopeJobSlow": "network/slow-link eth0 on rank 3 of host-3. The log"}),
        ("0x60", "imbalance", {}),
        ("0x60", "inefficient", {}),
    ],
)  # fmt: skip
def test_a_job_that_is_slow_from_its_start_is_told_and_one_that_became_slow_once(
    tmp_path: Path, slow: str, status: str, wanted: dict[str, str]
) -> None:
    given = [*named(status), series("rankscope_job_slow", slow), series("rankscope_job_hung", "0x60")]
    alerts(tmp_path, given, "3m")
    alerts(tmp_path, given, "7m", **wanted)


def test_who_has_no_series_is_told_by_the_job_alone(tmp_path: Path) -> None:
    given = [series("rankscope_job_named", "1x60"), series("rankscope_job_slow", "0x60")]
    alerts(tmp_path, given, "7m", RankscopeJobNamed=f"slow steps of {CLEAN}, which")


def test_a_hang_and_a_death_are_told_apart(tmp_path: Path) -> None:
    hung, slow = series("rankscope_job_hung", "1x60"), series("rankscope_job_slow", "0x60")
    gone = WHO.format("dead").replace("network", "process").replace("slow-link", "exited").replace("eth0", "")
    dead = [series("rankscope_job_dead", "1x60"), series("rankscope_suspect", "1x60", gone)]
    alerts(tmp_path, [hung, slow, series("rankscope_job_dead", "0x60")], "2m",
           RankscopeJobHung=f"HANG: {CLEAN} makes no steps on {NODE}")  # fmt: skip
    alerts(tmp_path, [*named("hang"), hung, slow], "2m", RankscopeJobHung="network/slow-link eth0 on rank 3 of host-3.")
    alerts(tmp_path, [hung, *dead], "2m", RankscopeJobDead="process/exited on rank 3 of host-3. The log")
    # the job is over before anybody scrapes its other series
    alerts(tmp_path, dead, "0m", RankscopeJobEndedByFailure=f"DEAD: {CLEAN} ended by a failure of a rank on {NODE}")


def test_a_first_alarm_of_hardware_and_a_service_that_writes_no_more_are_told(tmp_path: Path) -> None:
    given = [
        series("rankscope_job_alarms_total", "0x5 1x60", 'kind="hardware"'),
        series("rankscope_watch_last_round_timestamp_seconds", "0+60x8 480x60", "", f'instance="{NODE}"'),
    ]
    alerts(tmp_path, given, "5m")
    alerts(tmp_path, given, "8m", RankscopeHardwareBesideJob=f"Hardware of {NODE} failed beside {CLEAN}")
    alerts(tmp_path, given[1:], "25m", RankscopeWatchStale="written nothing for five minutes")


def test_a_warning_of_growth_that_lasts_is_told_with_its_device(tmp_path: Path) -> None:
    device = f'instance="{NODE}",check="pcie.aer",device="0000:3b:00.0"'
    for values, at, wanted in (
        ("0x2 1 0x60", "20m", {}),  # as it was when one sweep alone said it
        ("0x2 1x60", "10m", {}),
        ("0x2 1x60", "20m", {"RankscopeWarning": f"pcie.aer 0000:3b:00.0 has a warning on {NODE}"}),
        ("0x2 2x60", "3m", {"RankscopeCritical": f"pcie.aer 0000:3b:00.0 is critical on {NODE}"}),
    ):
        alerts(tmp_path, [series("rankscope_sweep_state", values, "", device)], at, **wanted)
