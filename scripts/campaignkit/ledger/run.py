"""One run: the service, a job whose pauses come at known times, a rank of it killed, and what its ledger says in the end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from campaignkit.ledger import accounts, schedule
from campaignkit.soak.run import held_by
from labkit.machine.shell import LabError, rankscope

_JOB = Path(__file__).parent / "programs" / "eventful.py"
_SERVICE_S = 15.0  # until the service looks for jobs
_BEGINS_S, _END_S = 30.0, 120.0
_LOOK_S, _SAMPLE_S = 0.5, 10.0
_KILLED_RANK, _AWAY_S = 2, 20.0


@dataclass(slots=True)
class Seen:
    """What a run came to. `sums`: counts and seconds of `accounts.py`; `cpu_share`: of one CPU, of the service by samples of 10 s."""

    sums: dict[str, float] = field(default_factory=dict)
    cpu_share: list[float] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def run(minutes: float, ranks: int, kept: Path | None = None) -> Seen:
    """Run it, alone on the machine. LabError where the job or the service does not. `kept`: where the ledger and its truth are copied."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="rankscope-ledger-") as place:
        folder = Path(place)
        with _service(folder) as service:
            seen = Seen()
            time.sleep(_SERVICE_S)
            begin = _planned(folder, minutes)
            kill_at = schedule.kill_at(begin, minutes)
            with _job(folder, ranks) as job:
                _watched(job, service, kill_at, seen)
                if job.poll() is not None:
                    raise LabError(f"the job ended with {job.poll()}: {_last_words(folder)}")
                os.kill(_told(folder, _KILLED_RANK)[0]["pid"], signal.SIGKILL)
                killed_at = time.time()
            _watched(None, service, killed_at + _AWAY_S, seen)
            with _job(folder, ranks) as job:
                _watched(job, service, begin + minutes * 60.0 + _END_S, seen)
                if job.poll() != 0:
                    raise LabError(f"the job ended with {job.poll()}: {_last_words(folder)}")
            time.sleep(_SERVICE_S)
            seen.sums["cpu_s"] = held_by(service.pid)[2]
            _ended(service, folder, seen)
        (folder / "ledger.json").write_text(_asked(folder), encoding="utf-8")
        seen.sums["seconds"] = time.monotonic() - began
        seen.sums["windows"] = len(list((folder / "history/windows").glob("*")))
        seen.sums |= _compared(folder, ranks, killed_at)
        if kept is not None:
            _keep(folder, kept)
    return seen


def _planned(folder: Path, minutes: float) -> float:
    """Give the job its schedule; return when it begins, Unix seconds."""
    begin = time.time() + _BEGINS_S
    until = begin + minutes * 60.0
    plan = {"pauses": schedule.pauses(begin, minutes), "hang_s": schedule.hang_s(minutes), "until": until}
    (folder / "schedule.json").write_text(json.dumps(plan), encoding="utf-8")
    return begin


def _watched(job: subprocess.Popen[bytes] | None, service: subprocess.Popen[bytes], until: float, seen: Seen) -> None:
    """Watch what the service costs until this time (Unix seconds) or the end of the job. LabError where the service ends."""
    looked_s, cpu_s = time.monotonic(), held_by(service.pid)[2]
    while time.time() < until and (job is None or job.poll() is None):
        time.sleep(_LOOK_S)
        if service.poll() is not None:
            raise LabError(f"the service ended with {service.returncode}")
        if (took_s := time.monotonic() - looked_s) >= _SAMPLE_S:
            now_s = held_by(service.pid)[2]
            seen.cpu_share.append(max(now_s - cpu_s, 0.0) / took_s)
            looked_s, cpu_s = time.monotonic(), now_s


def _last_words(folder: Path) -> str:
    lines = (folder / "job-errors").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " / ".join(lines[-3:])[:300]


def _compared(folder: Path, ranks: int, killed_at: float) -> dict[str, float]:
    told = [_told(folder, rank) for rank in range(ranks)]
    steps = (folder / "steps").read_bytes()
    true = accounts.of_job(told, list(struct.iter_unpack("<dd", steps[: len(steps) // 16 * 16])), killed_at)
    ledgers: list[dict[str, Any]] = json.loads((folder / "ledger.json").read_text(encoding="utf-8"))
    return true | accounts.of_ledger(entry for one in ledgers for entry in one["entries"])


def _told(folder: Path, rank: int) -> list[dict[str, Any]]:
    return accounts.lines_of((folder / f"told-{rank}").read_text(encoding="utf-8"))


def _asked(folder: Path) -> str:
    done = subprocess.run(
        [rankscope(), "ledger", "--state", folder / "state", "--json"], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise LabError(f"rankscope ledger ended with {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout


def _keep(folder: Path, kept: Path) -> None:
    kept.mkdir(parents=True, exist_ok=True)
    for path in (*folder.glob("told-*"), *(folder / name for name in ("ledger.json", "schedule.json", "said"))):
        (kept / path.name).write_bytes(path.read_bytes())


@contextmanager
def _service(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "said").open("wb") as said, (folder / "errors").open("wb") as errors:
        command = [rankscope(), "watch", "--no-routine"]
        command += [word for name in ("state", "history") for word in (f"--{name}", str(folder / name))]
        service = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=said, stderr=errors, start_new_session=True
        )
        try:
            yield service
        finally:
            _gone(service)


def _ended(service: subprocess.Popen[bytes], folder: Path, seen: Seen) -> None:
    service.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        service.wait(30.0)
    if service.poll() != 0:
        words = (folder / "errors").read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or [""]
        seen.problems.append(f"the service ended with {service.poll()}: {words[0][:200]}")


@contextmanager
def _job(folder: Path, ranks: int) -> Iterator[subprocess.Popen[bytes]]:
    """Start the job by torchrun, which makes an id for each run, and ends all ranks where one is killed."""
    launcher = Path(sys.executable).with_name("torchrun")
    with (folder / "job-errors").open("wb") as errors:
        job = subprocess.Popen(
            [launcher, "--standalone", "--nproc-per-node", str(ranks), _JOB, folder],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True,
        )  # fmt: skip
        try:
            yield job
        finally:
            _gone(job)


def _gone(process: subprocess.Popen[bytes]) -> None:
    """End a process; torchrun ends its ranks, which are in sessions of their own."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
