"""Jobs are called by what people know them by."""

from __future__ import annotations

import pytest

from rankscope.observer.census.titles import program, scheduler_job, title

SLURM = {"SLURM_JOB_ID": "1234", "SLURM_JOB_NAME": "llama-7b"}


@pytest.mark.parametrize("command, said", [
    (("/usr/bin/python3.11", "-u", "/home/a/train.py", "--lr", "1"), "train.py"),
    (("python", "-X", "faulthandler", "train.py"), "train.py"),
    (("python", "-u", "-m", "pkg.train", "--lr", "1"), "-m pkg.train"),
    (("/venv/bin/python3", "/venv/bin/llamafactory-cli", "train"), "llamafactory-cli"),
    (("python", "-c", "import x; x.main()"), "python -c"),
    (("ray::RayTrainWorker", "", ""), "ray::RayTrainWorker"),
    (("/opt/app/trainer", "--big"), "trainer"),
    (("python", "\x1b[31mtrain.py"), "\\x1b[31mtrain.py"),
    (("python",), ""), (("",), ""), ((), ""),
])  # fmt: skip
def test_a_program_is_its_script_or_module(command: tuple[str, ...], said: str) -> None:
    assert program(command) == said


def test_a_scheduler_gives_number_and_name() -> None:
    assert scheduler_job(SLURM) == "slurm 1234 llama-7b"
    assert scheduler_job({"PBS_JOBID": "7.pbs"}) == "pbs 7.pbs"
    assert scheduler_job({"SLURM_JOB_NAME": "no number"}) == ""
    assert title(("python", "train.py"), scheduler_job(SLURM)) == "train.py (slurm 1234 llama-7b)"
    assert title(("python", "train.py"), "") == "train.py"
    assert title((), "slurm 1234") == "slurm 1234"
