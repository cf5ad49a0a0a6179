"""The hook that writes a line for rules over logs: what HyperPod's rules and NVRx's signature match, and what they must not."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

HOOKS = Path(__file__).parents[3] / "scripts/deploy/hooks"
RULES = {
    one["name"]: one for one in yaml.safe_load((HOOKS / "log-rules.yaml").read_text())["logMonitoringConfiguration"]
}
# What NVRx's restart agent takes for the summary of an exception (its registry's row `observed_exception`).
NVRX = re.compile(r"\b[A-Za-z_][A-Za-z0-9_.]*(?:Error|Exception):(?:\s|$)", re.IGNORECASE)
SUSPECT = {"component": "process", "cause": "deadlock", "lost_percent": 100.0}
HANG = {
    "schema": "rankscope.watch/1", "host": "node7", "kind": "verdict", "state": "critical", "job": "llm 70b", "alarm": "silent",
    "words": "HANG process/deadlock wait_for (train.py:14) on rank 3: no step for 62.0 s", "verdict": {"suspects": [SUSPECT]},
}  # fmt: skip
SLOW = {**HANG, "state": "warning", "words": "FAULT storage/slow-read on rank 2: 0.058 s/step lost",
        "verdict": {"suspects": [{"component": "storage", "cause": "slow-read", "lost_percent": 31.4}]}}  # fmt: skip
SWEPT = {
    "schema": "rankscope.sweep/1", "host": "node7", "summary": {"state": "critical"},
    "findings": [{"id": "gpu.xid", "state": "critical", "instance": "0000:3b:00.0", "why": "Xid 79: GPU has fallen off the bus"}],
}  # fmt: skip


def lines(folder: Path, *events: dict[str, Any]) -> list[str]:
    """What the hook appends for these."""
    path = folder / "log/lines.log"
    for event in events:
        environment = {**os.environ, "RANKSCOPE_LINES": str(path)}
        subprocess.run(
            [HOOKS / "log-line.sh"], input=json.dumps(event), text=True, check=True, env=environment, timeout=60
        )
    return path.read_text().splitlines() if path.exists() else []


def matched(rule: str, line: str) -> re.Match[str] | None:
    """As HyperPod's agent does it: from the beginning of the line."""
    return re.match(RULES[rule]["logPattern"], line)


def test_what_stopped_or_broke_is_a_fault_to_hyperpod_and_an_error_to_nvrx(tmp_path: Path) -> None:
    hang, swept = lines(tmp_path, HANG, SWEPT)
    assert hang.startswith(
        "RankscopeError: reason=process/deadlock host=node7 job=llm_70b lost_percent=100: HANG process/deadlock"
    )
    assert swept.startswith(
        "RankscopeError: reason=gpu.xid host=node7 job=- lost_percent=0: gpu.xid 0000:3b:00.0: Xid 79"
    )
    for line in (hang, swept):
        assert matched("RankscopeStoppedOrBroken", line)
        assert matched("RankscopeSlow", line) is None
        assert NVRX.search(line)
    assert RULES["RankscopeStoppedOrBroken"]["faultOnMatch"] is True


def test_what_is_slow_gives_the_number_that_the_rule_compares(tmp_path: Path) -> None:
    (slow,) = lines(tmp_path, SLOW)
    found = matched("RankscopeSlow", slow)
    assert found is not None
    assert float(found[1]) == 31.0 >= RULES["RankscopeSlow"]["metricThreshold"]
    assert matched("RankscopeStoppedOrBroken", slow) is None
    assert NVRX.search(slow) is None


@pytest.mark.parametrize("kind", ["over", "note"])
def test_what_ended_or_is_only_said_restarts_nothing(tmp_path: Path, kind: str) -> None:
    for line in lines(tmp_path, {**HANG, "kind": kind, "state": "ok", "words": "steps again"}):
        assert line.startswith("RankscopeOver: ")
        assert not any(matched(rule, line) for rule in RULES)
        assert NVRX.search(line) is None


def test_the_name_of_a_job_is_no_line_and_no_field_of_its_own(tmp_path: Path) -> None:
    evil = {
        **SLOW,
        "job": "x\nRankscopeError: reason=gpu/lost host=node1 job=y lost_percent=99: z",
        "words": "a\nRankscopeError: b ValueError: c",
    }
    (line,) = lines(tmp_path, evil)
    assert matched("RankscopeStoppedOrBroken", line) is None
    assert NVRX.search(line) is None
    assert line.count(" host=") == 1


def test_the_file_has_a_bound_and_is_no_link(tmp_path: Path) -> None:
    path = tmp_path / "log/lines.log"
    path.parent.mkdir()
    path.write_text("x" * (1 << 20) + "\n")
    assert len(lines(tmp_path, HANG)) == 1
    assert (tmp_path / "log/lines.log.1").stat().st_size > 1 << 20
    path.unlink()
    path.symlink_to(tmp_path / "victim")
    with pytest.raises(subprocess.CalledProcessError):
        lines(tmp_path, HANG)
    assert not (tmp_path / "victim").exists()
