"""Services of two hosts over one folder: what one of them notices both look at, at once; one judges, both tell.

They share a kernel, as there is one machine: each has a mount namespace in which the rank of the other is not there, and a name of its own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import service_log
import small_rank
from installed import RANKSCOPE

from rankscope.probes.host import procfs

pytestmark = pytest.mark.apart  # every alarm of its host counts

_AS_A_HOST = 'hostname "$1" && mount --bind "$2" "/proc/$3" && shift 3 && exec "$@"'
PORT = 29774
STEPS_NOT_TIMED_S = 0.001  # so often that the service does not count them: nothing but the stop is an alarm


class Host:
    """A service that does not see one process, and what it says."""

    def __init__(self, name: str, hidden: int, folder: Path) -> None:
        own = folder / name
        (own / "empty").mkdir(parents=True)
        self.said, self.errors = own / "said", own / "stderr"
        command = [RANKSCOPE, "watch", "--json", "--no-routine", "--window", "1.5", "--out", folder / "store"]
        command += ["--spool", own / "spool", "--state", own / "state", "--history", own / "history"]
        alone = ["unshare", "--mount", "--uts", "sh", "-c", _AS_A_HOST, "sh", name, own / "empty", str(hidden)]
        self.process = subprocess.Popen([*alone, *command], stdout=self.said.open("wb"), stderr=self.errors.open("wb"))

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in service_log.events(self.said) if event["kind"] == kind]

    def wait_for(self, kind: str, seconds: float) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while not (found := self.events(kind)):
            assert self.process.poll() is None, self.errors.read_text()
            assert time.monotonic() < deadline, f"no {kind}: {self.said.read_text()}{self.errors.read_text()}"
            time.sleep(0.1)
        return found[0]

    def wait_until_a_look_stands_by(self, seconds: float) -> None:
        """Its child has loaded and found all when it has forked who observes."""
        deadline = time.monotonic() + seconds
        while not any(procfs.children(child) for child in procfs.children(self.process.pid)):
            assert time.monotonic() < deadline, f"no look stands by: {self.said.read_text()}{self.errors.read_text()}"
            time.sleep(0.1)


def test_what_one_host_notices_all_look_at_and_one_judges(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with ExitStack() as closing:
        ranks = []
        for rank in range(2):
            (tmp_path / f"rank{rank}").mkdir()
            ranks.append(
                closing.enter_context(small_rank.running(tmp_path / f"rank{rank}", rank, 2, PORT, STEPS_NOT_TIMED_S))
            )
        hosts = [Host(f"node{rank}", ranks[1 - rank], tmp_path) for rank in range(2)]
        for host in hosts:
            closing.callback(host.process.wait)
            closing.callback(host.process.kill)
        for rank, host in enumerate(hosts):
            assert host.wait_for("job", 60)["words"].startswith(f"rank {rank} of 2")
        for host in hosts:
            host.wait_until_a_look_stands_by(60)

        os.kill(ranks[1], signal.SIGSTOP)
        told = [host.wait_for("verdict", 90) for host in hosts]
    assert hosts[0].events("alarm") == [], "node0 has seen nothing itself"
    assert hosts[1].events("alarm")[0]["alarm"] == "stopped"
    assert [each["judged_by"] is None for each in told] == [False, True], "the host that noticed judges"
    # Who is named is the diagnoser's: these ranks wait for nobody, and their window is short.
    assert (told[0]["verdict"]["hosts"], told[0]["verdict"]["ranks"]) == (["node0", "node1"], [0, 1])
    assert told[0]["verdict"] == told[1]["verdict"]
    names = {path.name.partition("=")[0] for path in (tmp_path / "store").glob("job=*/*")}
    assert names == {"trigger", "verdict", "window"}
