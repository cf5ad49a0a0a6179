"""The demonstration: a job with one slow function on one rank, observed from outside, and the answer checked."""

from __future__ import annotations

import random
import subprocess
import tempfile
import time

from labkit import verdicts
from labkit.faults.python_slow import PythonSlow
from labkit.launch import Job, Plan
from labkit.machine.shell import EXIT_NOT_GOOD_ENOUGH, LabError, rankscope


def run(window_s: float) -> int:
    """Run it; 0 where the injected rank and function were the first suspect."""
    rng = random.SystemRandom()
    plan = Plan(ranks=4, hosts=2, lone=rng.randrange(4))
    print(
        f"starting a PyTorch DDP job: {plan.ranks} ranks on {plan.hosts} hosts (network namespaces) …",
        flush=True,
    )
    with Job(plan, seed=rng.randrange(1 << 30)) as job:
        job.wait_until_healthy()
        began = time.monotonic()
        time.sleep(2.5)
        healthy = job.pace(began, time.monotonic())
        if healthy is None:
            raise LabError("a healthy rank ended no step: this host is too busy for the demonstration")
        truth = PythonSlow(job, random.Random(rng.randrange(1 << 30)), "strong", healthy).inject()
        print(
            f"the job trains, {healthy.step_s * 1e3:.0f} ms a step; now one function of one rank is slow (told below)"
        )
        folder = tempfile.mkdtemp(prefix=time.strftime("rankscope-demo-%Y%m%dT%H%M%S-"))
        time.sleep(1)
        _show([rankscope(), "record", "--window", f"{window_s:g}", "--out", folder])
        _show([rankscope(), "diagnose", folder])
        _show([rankscope(), "report", folder, "--html", f"{folder}/page.html"])
        verdict = _verdict(folder)
    right = verdicts.score(verdict, truth) == verdicts.FIRST
    kind = "computes" if truth.culprit == "busy" else "sleeps"
    print(f"\ninjected: rank {truth.ranks[0]}, function {truth.function} ({kind} too long)")
    if right:
        print("rankscope named it first.")
        print(
            f"\nThe page and the window stay in {folder} (0.1 MB) until you remove them. To go on:\n"
            f"  .venv/bin/rankscope diagnose {folder} -v\n"
            f"  .venv/bin/rankscope export {folder} --to speedscope --out stacks.json   # or folded, pprof, perfetto, csv"
        )
    else:
        said = "; ".join(map(str, verdict.suspects[:3]))
        print(f"rankscope did NOT name it first; it said {verdict.status}: {said}")
    return 0 if right else EXIT_NOT_GOOD_ENOUGH


def _verdict(folder: str) -> verdicts.Verdict:
    command = [rankscope(), "diagnose", folder, "--json"]
    judged = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    try:
        return verdicts.parse(judged.stdout)
    except verdicts.BadVerdict as error:
        last = (judged.stderr.strip() or "no message").splitlines()[-1]
        raise LabError(f"no verdict came: {error}", last) from None


def _show(command: list[str]) -> None:
    """Run a command before the reader's eyes."""
    print(f"\n$ rankscope {' '.join(command[1:])}", flush=True)
    subprocess.run(command, check=False, stdin=subprocess.DEVNULL, timeout=300)
