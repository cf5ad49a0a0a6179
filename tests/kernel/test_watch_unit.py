"""The systemd unit of the service runs for real: with its rights, its call filter and its files it watches a job and looks closer."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import holding
import pytest
import service_log
import small_rank
import trial_systemd

from rankscope.diagnose.service.place import WatchPlace
from rankscope.observer.apart.presence import FOLDER

pytestmark = pytest.mark.apart  # a service sees every job of its host

REPOSITORY = Path(__file__).parents[2]
UNITS = REPOSITORY / "scripts/deploy/systemd"
CACHE = Path("/var/cache/rankscope")
NAME, GUARD, PORT = "rankscope-watch", "rankscope-guard", 29_774


def _put_unit(manager: trial_systemd.Manager, name: str = NAME) -> Path:
    """A unit, and what `for-clone` prints for this clone, but for where it writes; where it complains."""
    state, errors = manager.folder / "state/rankscope", manager.folder / "errors"
    unit = (UNITS / f"{name}.service").read_text()
    clone = subprocess.run([UNITS / "for-clone", name], stdout=subprocess.PIPE, text=True, check=True).stdout
    options = f"--state {state}/watch --history {state}/history --no-routine --window 1.5"
    clone = clone.replace("/var/lib/rankscope", str(state)).replace('" watch --metrics', f'" watch {options} --metrics')
    (manager.folder / f"units/{name}.service").write_text(unit)
    drop_ins = manager.folder / f"units/{name}.service.d"
    drop_ins.mkdir()
    (drop_ins / "clone.conf").write_text(clone)
    # CacheDirectory= and RuntimeDirectory= are other folders under a manager of a user's.
    CACHE.mkdir(mode=0o700, exist_ok=True)
    (drop_ins / "trial.conf").write_text(f"[Service]\nReadWritePaths={CACHE} {FOLDER}\nStandardError=append:{errors}\n")
    manager.control("daemon-reload")
    return errors


@pytest.mark.skipif(not trial_systemd.SYSTEMD.exists(), reason="systemd is not installed")
def test_the_unit_watches_looks_closer_and_ends(tmp_path: Path) -> None:
    with small_rank.running(tmp_path, port=PORT), trial_systemd.running() as manager:
        # GIVEN the service, started: `start` returns when it has said that it watches
        errors, place = _put_unit(manager), manager.folder / "state/rankscope/watch"
        _put_unit(manager, GUARD)
        manager.control("start", NAME)
        assert "ActiveState=active" in manager.control("show", "-p", "ActiveState", GUARD)
        main = manager.control("show", "-p", "MainPID", "--value", NAME).strip()
        status = Path("/proc", main, "status").read_text()
        assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE) and re.search(
            r"^NoNewPrivs:\s+1$", status, re.MULTILINE
        )
        # WHEN it has found the job and is asked for a look
        job = service_log.first(place, "job", PORT, errors, 60)
        time.sleep(3)
        WatchPlace(place).ask(job["job"])
        told = service_log.first(place, "verdict", PORT, errors, 90)["verdict"]
        # THEN probes, steps and stacks are all there, and it ends when it is told to
        assert told["ranks"] == [0] and 0.01 < told["step_seconds"]["p50"] < 0.06
        assert not [note for note in told["notes"] if "not attached" in note or "not timed" in note]
        manager.control("stop", NAME)
        assert "Result=success" in manager.control("show", "-p", "Result", NAME)
        assert not errors.read_text()


@pytest.mark.skipif(not trial_systemd.SYSTEMD.exists(), reason="systemd is not installed")
def test_the_unit_of_the_guard_ends_what_holds_up_the_host() -> None:
    with trial_systemd.running() as manager:
        errors = _put_unit(manager, GUARD)
        manager.control("start", GUARD)
        took_s = holding.unguarded_probe_s()
        print(f"every fork was held up for {took_s:.1f} s")
        assert took_s < holding.ENDED_S
        manager.control("stop", GUARD)
        assert not errors.read_text()
