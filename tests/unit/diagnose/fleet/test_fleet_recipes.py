"""The recipes for large fleets on Slurm and Kubernetes: who schedules, who works, and what is said at the end. Dask itself is played."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[4] / "scripts" / "deploy"
yaml = pytest.importorskip("yaml")
DASK = """#!/bin/bash
echo "dask $*" >>"$TOLD"
while (($#)); do [[ $1 == --scheduler-file ]] && file=$2; shift; done
[[ ${file:-} ]] && { printf '{\\n  "type": "Scheduler",\\n  "address": "tcp://10.0.0.1:8786"\\n}\\n' >"$file"; exec sleep 60; }
exit 0
"""
RANKSCOPE = """#!/bin/bash
echo "rankscope $* at $DASK_SCHEDULER_ADDRESS" >>"$TOLD"
exit ${CODE:-1}
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Programs of these names that say how they were called."""
    for name, text in (("dask", DASK), ("rankscope", RANKSCOPE)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path


def task(place: Path, number: int, **more: str) -> subprocess.CompletedProcess[str]:
    given = {
        "RANKSCOPE_BIN": str(place), "SHARED": str(place), "STORE": "s3://b/w", "TOLD": str(place / "told"),
        "SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_JOB_ID": "7", "PATH": os.environ["PATH"], **more,
    }  # fmt: skip
    script = DEPLOY / "slurm/diagnose.sbatch"
    return subprocess.run(["bash", script], env=given, capture_output=True, text=True, timeout=60, check=False)


def test_the_first_task_of_the_array_schedules_and_judges(place: Path) -> None:
    done = task(place, 0, CODE="2")
    assert done.returncode == 2, done.stderr
    told = (place / "told").read_text()
    assert "rankscope diagnose s3://b/w --engine dask at tcp://10.0.0.1:8786" in told
    assert not (place / "rankscope-7.json").exists()


def test_the_other_tasks_are_workers_of_the_first(place: Path) -> None:
    (place / "dask").write_text(DASK.replace("exec sleep 60", "exit 0"))
    assert task(place, 3, SLURM_CPUS_PER_TASK="2").returncode == 0
    told = (place / "told").read_text()
    assert told.startswith(f"dask worker --scheduler-file {place}/rankscope-7.json --nworkers 2 --nthreads 1")
    assert "rankscope diagnose" not in told


def test_an_array_without_a_store_says_what_is_missing(place: Path) -> None:
    done = task(place, 0, STORE="")
    assert done.returncode != 0
    assert "STORE says where the windows lie" in done.stderr


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (1, 0), (3, 0), (65, 1)])
def test_the_first_pod_ends_well_whatever_the_verdict_is(place: Path, code: int, ended: int) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes/diagnose-job.yaml").read_text()))
    [job] = [each for each in documents if each["kind"] == "Job"]
    [text] = job["spec"]["template"]["spec"]["containers"][0]["args"]
    text = text.replace("bin=/opt/rankscope/.venv/bin", f"bin={place}")
    given = {"STORE": "s3://b/w", "TOLD": str(place / "told"), "CODE": str(code), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        ["sh", "-c", text],
        env={**given, "JOB_COMPLETION_INDEX": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1]) == (ended, f"exit code {code}")
    other = subprocess.run(["sh", "-c", text], env={**given, "JOB_COMPLETION_INDEX": "4"}, timeout=60, check=False)
    assert other.returncode == 0
    assert "dask worker tcp://rankscope-diagnose-0.rankscope-diagnose:8786" in (place / "told").read_text()


def test_the_pods_that_judge_hear_one_another_alone() -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kubernetes/diagnose-job.yaml").read_text()))
    kinds = {document["kind"]: document for document in documents}
    theirs = {"matchLabels": {"job-name": kinds["Job"]["metadata"]["name"]}}
    policy = kinds["NetworkPolicy"]["spec"]
    assert policy["podSelector"] == theirs and policy["policyTypes"] == ["Ingress"]
    assert policy["ingress"] == [{"from": [{"podSelector": theirs}]}]
